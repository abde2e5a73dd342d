"""python -m millstream.demo [directory] [--seed N] [--small] [--fresh]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from millstream.demo.run import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m millstream.demo", description="Spikes and dips in search traffic.")
    parser.add_argument("output", type=Path, nargs="?", default=Path("zeitgeist"), help="where everything goes (zeitgeist)")
    parser.add_argument("--seed", type=int, default=7, help="another seed is another world (7)")
    parser.add_argument("--small", action="store_true", help="a fifth of the queries, and one kill instead of two")
    parser.add_argument("--fresh", action="store_true", help="begin anew, also where the last demo was interrupted")
    chosen = parser.parse_args()
    sys.exit(run(chosen.output, chosen.seed, chosen.small, chosen.fresh))
