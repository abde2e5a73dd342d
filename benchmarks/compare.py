"""Before and after, in one sitting: the way `millstream` with this tree's Millstream and with another's, taking turns, each in a fresh process.

    python -m benchmarks.compare OTHER_SRC [--files 8] [--per-file 200000] [--rounds 2] [--same-session]

OTHER_SRC is the `src` folder of another version, say of a git worktree. The last line is one JSON object with this tree's CPU over the other's.

Rules
1. Both sides run this tree's benchmarks over the same files. Nothing but Millstream differs, and the counts of every run are compared with the truth.
2. Each side makes its session as a user of that version would, with the settings that this version has by itself. With --same-session both get
   this tree's settings: what is then left is the code's.
3. A side's figure is the mean of its rounds. Single rounds are printed, so that it can be seen how far they are apart.
4. What the JVM's compiler takes differs from process to process by more than most changes do: `cpu_without_jit_vs_other` is the steadier figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.cpu import Cpu

ROOT = Path(__file__).resolve().parent.parent
OURS = ROOT / "src"


def main() -> dict[str, float]:
    options = _options()
    sides = {"this tree": OURS, "other": options.other}
    found: dict[str, list[Cpu]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        print(f"making {options.files * options.per_file:,} records in {options.files} files", flush=True)
        truth = data.make(root / "data", options.files, options.per_file, options.keys)
        extra: list[str] = []
        if options.same_session:
            extra = ["--settings", str(root / "settings")]
            print("asking for this tree's settings of Spark", flush=True)
            _run(OURS, ["--write-settings", str(root / "settings")], root)
        for turn in range(1, options.rounds + 1):
            for name, source in sides.items():
                print(f"round {turn} of {options.rounds}: {name}, {options.passes} passes", flush=True)
                told = _run(
                    source, ["--data", str(root / "data"), "--work", str(root / "work"), "--passes", str(options.passes), *extra], root
                )
                counts = data.read_counts(root / "work" / str(options.passes - 1) / "counts")
                assert counts == truth, f"{name}: {len(counts)} buckets, {len(truth)} expected, or their counts are wrong"
                shutil.rmtree(root / "work")
                rate = told.pop("rate")
                found[name].append(Cpu(**told))
                print(f"{name:10s} CPU-s per million {found[name][-1]}   {rate:10,.0f} records/s", flush=True)
    for name, source in sides.items():
        print(f"mean of {name} ({source}): CPU-s per million {mean(found[name])}")
    result = ratios(mean(found["this tree"]), mean(found["other"]))
    print(json.dumps(result))
    return result


def mean(rounds: Sequence[Cpu]) -> Cpu:
    """Rule 3."""
    return sum(rounds, Cpu()) * (1 / len(rounds))


def ratios(ours: Cpu, other: Cpu) -> dict[str, float]:
    """This tree's CPU over the other's: in all, in all but the JIT, and part by part."""
    pairs = {
        "cpu_vs_other": (ours.total, other.total),
        "cpu_without_jit_vs_other": (ours.total - ours.jit, other.total - other.jit),
        "jvm_vs_other": (ours.jvm, other.jvm),
        "python_vs_other": (ours.python, other.python),
        "driver_vs_other": (ours.driver, other.driver),
    }
    return {name: round(mine / theirs, 2) for name, (mine, theirs) in pairs.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER_SRC", help="the src folder of another version")
    parser.add_argument("--files", type=int, default=8, help="files, and so epochs (8); the first two are warm-up")
    parser.add_argument("--per-file", type=int, default=200_000, help="records in a file (200,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2, help="how often each side runs, taking turns (2)")
    parser.add_argument("--passes", type=int, default=2, help="how often a run reads the input; the last pass counts (2)")
    parser.add_argument("--same-session", action="store_true", help="both sides get this tree's settings of Spark")
    options = parser.parse_args()
    if options.files < 3 or options.rounds < 1 or options.passes < 1:
        parser.error("at least three files (two are warm-up), one round and one pass are needed")
    try:
        options.other = source_folder(options.other)
    except ValueError as error:
        parser.error(str(error))
    return options


def source_folder(path: Path) -> Path:
    """The folder that holds the package, or an error that says which one was meant."""
    found = path.resolve()
    if (found / "millstream" / "__init__.py").is_file():
        return found
    hint = f"; {path / 'src'} would do" if (found / "src" / "millstream" / "__init__.py").is_file() else ""
    raise ValueError(
        f"there is no Millstream in {path}: give the folder that holds the package millstream, the src folder of a checkout{hint}"
    )


def environment(source: Path, root: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Millstream from that folder and the benchmarks from this tree, in the process and in Spark's workers; state caches in a folder that is removed."""
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "MILLSTREAM_STATE_CACHE": str(root / "state_caches")}


def _run(source: Path, arguments: Sequence[str], root: Path) -> dict[str, Any]:
    """A process of its own; what its last line says."""
    command = [sys.executable, "-m", "benchmarks.once", str(source), *arguments]
    with (root / "stderr").open("w+") as errors:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(source, root, os.environ), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        if done.returncode:
            errors.seek(0)
            sys.exit(f"the run with Millstream from {source} failed:\n{errors.read()[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
