"""python -m demos [views|service] [--output DIR] [--seed N] [--small] [--fresh], with `examples` on Python's path; `make demo` does it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

_ABOUT = {
    "zeitgeist": "finds spikes and dips in made-up search traffic, while its drivers are killed",
    "views": "keeps totals over users who change, while its drivers are killed, and has DuckDB check them",
    "service": "serves the state of the Zeitgeist pipeline, and asks for it: while it runs, and after its driver was killed",
}


def main(argv: list[str] | None = None) -> int:
    """Runs one of the demos."""
    parser = argparse.ArgumentParser(
        prog="python -m demos", description="; ".join(f"{name} {about}" for name, about in _ABOUT.items()) + "."
    )
    parser.add_argument("demo", choices=_ABOUT, nargs="?", default="zeitgeist", help="which one (zeitgeist)")
    parser.add_argument("--output", metavar="DIR", type=Path, help="where everything goes (the name of the demo)")
    parser.add_argument("--seed", metavar="N", type=int, default=7, help="another seed is another world (7)")
    parser.add_argument("--small", action="store_true", help="a fifth of the input")
    parser.add_argument("--fresh", action="store_true", help="zeitgeist: begin anew, also where the last demo was interrupted")
    chosen = parser.parse_args(argv)
    output = chosen.output or Path(chosen.demo)
    here = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))  # for drivers, and for Spark's workers
    if chosen.demo == "views":
        from demos.people.run import run as people

        return people(output=output, seed=chosen.seed, small=chosen.small)
    if chosen.demo == "service":
        from demos.asked.run import run as asked

        return asked(output=output, seed=chosen.seed, small=chosen.small)
    from demos.run import run

    return run(output=output, seed=chosen.seed, small=chosen.small, fresh=chosen.fresh)


if __name__ == "__main__":
    sys.exit(main())
