"""python scripts/matrix.py [--write] [--only GROUP] [VERSION ...]: the tests that a version of Spark can break, on each version of Spark.

Each version has a virtual environment of its own, with a Python that its platforms have, in .matrix/. With --write the table in docs/platforms.md is
rewritten; a version that was not run keeps its row.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = {"4.0": "3.11", "4.1": "3.12", "4.2": "3.13", "4.3": "3.13"}
TESTS = {
    "engine": ["tests/spark/test_engine.py", "tests/spark/test_operators_on_spark.py", "tests/spark/test_views.py"],
    "sources": ["tests/spark/test_inputs.py", "tests/spark/test_data_sources.py", "tests/spark/test_bad_input.py"],
    "delivery": ["tests/spark/test_delivery.py"],
    "retry": ["tests/spark/test_retry.py"],
    "resident": ["tests/spark/test_resident.py"],
    "kill": ["tests/crash/test_kill.py", "tests/crash/test_fencing.py", "tests/crash/test_resident_kills.py"],
    "cluster": ["tests/crash/test_cluster.py"],
    "connector": ["tests/connector/test_pipeline.py", "tests/connector/test_sink_pipeline.py", "tests/connector/test_source_spark.py"],
}
ALL_OF = {"cluster"}  # also what `make test` leaves to `make soak`
PAGE = ROOT / "docs" / "platforms.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- /matrix -->\n"


def interpreter(version: str) -> str:
    """A Python of that version, or else this one."""
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))]
    for found in filter(None, candidates):
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return sys.executable


def environment(spark: str) -> Path:
    """The virtual environment of a version, made if there is none."""
    folder = ROOT / ".matrix" / f"spark-{spark}"
    done, python = folder / ".installed", folder / "bin" / "python"
    if not done.exists() or done.stat().st_mtime < (ROOT / "pyproject.toml").stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([interpreter(PYTHONS[spark]), "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        install += ["-e", f"{ROOT}[test]", f"pyspark~={spark}.0"]
        say = f"installing Spark {spark} into {folder.relative_to(ROOT)}"
        subprocess.run([sys.executable, str(ROOT / "scripts" / "patiently.py"), say, str(folder / "install.log"), *install], check=True)
        done.touch()
    return python


def outcome(python: Path, name: str, paths: list[str]) -> str:
    """How a group of tests went, in pytest's own words."""
    began = time.monotonic()
    marks = [] if name in ALL_OF else ["-m", "not soak"]
    ran = subprocess.run([str(python), "-m", "pytest", *marks, *paths], cwd=ROOT, capture_output=True, text=True)
    counts = re.findall(
        r"(\d+) (passed|failed|error|skipped)", next((line for line in reversed(ran.stdout.splitlines()) if " in " in line), "")
    )
    told = ", ".join(f"{count} {what}" for count, what in counts) or f"exit {ran.returncode}"
    print(f"  {name}: {told}, {time.monotonic() - began:.0f} s", flush=True)
    if ran.returncode:
        print(ran.stdout[-4000:], flush=True)
    return told


def row(spark: str, only: str | None) -> str:
    """A version's row of the table. only: a group of tests, where the other cells stay as they are."""
    python = environment(spark)
    known = [cell.strip() for cell in told_before().get(spark, "").strip("| ").split("|")[2:]] if only is not None else []
    ask = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
    versions = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    print(f"Spark {versions[0]}, Python {versions[1]}", flush=True)
    groups = enumerate(TESTS.items())
    cells = [known[at] if only not in (None, name) else outcome(python, name, paths) for at, (name, paths) in groups]
    return f"| {' | '.join([*versions, *cells])} |"


def told_before() -> dict[str, str]:
    """The rows of the table, by version."""
    old = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    return {match.group(1): line for line in old.splitlines() if (match := re.match(r"\| (\d\.\d)\.", line))}


def write(rows: dict[str, str]) -> None:
    kept, text = told_before(), PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    titles = ["Spark", "Python", *TESTS]
    table = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    PAGE.write_text(head + BEGIN + "\n".join([*table, *[line for _, line in sorted((kept | rows).items())]]) + "\n" + END + tail)
    print(f"the table is in {PAGE.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(PYTHONS)}; all of them by default")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", choices=list(TESTS), help="a group of tests; a row keeps its other cells")
    asked = parser.parse_args()
    if unknown := set(asked.versions) - set(PYTHONS):
        parser.error(f"no such version: {', '.join(unknown)}")
    rows = {}
    for spark in asked.versions or PYTHONS:
        rows[spark] = row(spark, asked.only)
        if asked.write:
            write(rows)
    failed = [spark for spark, told in rows.items() if re.search("failed|error|exit", told)]
    print(f"failed with Spark {', '.join(failed)}" if failed else f"passed with Spark {', '.join(rows)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
