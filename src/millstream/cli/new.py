"""`millstream new`: a folder with a pipeline, its test, and what a repository needs to run that test.

Rules
1. A folder that has anything in it is left alone.
2. The pipeline works as it is: on files it finds input beside it, and its test passes.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from string import Template

from millstream import __version__
from millstream.cli.arguments import Commands, failed

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*")

_PIPELINE = """\
\"\"\"How often was each page clicked, per minute of event time?\"\"\"
$imports
import millstream as ms
$settings
pipeline = ms.Pipeline("$name")
source = $source
clicks = pipeline.inject("clicks", source, timestamp="at", id="$id", watermark=$watermark)
counts = clicks.by("page").window(ms.windows.tumbling("1m")).reduce(clicks=ms.count(), name="counts")
pipeline.emit(counts, $sink)
"""

_TEST = """\
\"\"\"The pipeline on a clock that the test moves; and under crashes, repeated tasks and repeated input. Neither needs Spark.\"\"\"

import millstream as ms

from pipeline import pipeline


def click(page, at):
    return $row


def test_clicks_are_counted_per_minute():
    runner = ms.testing.LocalRunner(pipeline)
    runner.push("clicks", click("tea", 1_000), click("tea", 59_999), click("tea", 60_000), click("rum", 2_000))
    runner.run()
    assert runner.output("counts") == []  # older clicks may still come
    runner.push("clicks", click("tea", 70_000))
    runner.run()  # 70 s less 10: the first minute is complete
    found = {(value["page"], value["start"]): value["clicks"] for _, value, _ in runner.output("counts")}
    assert found == {("tea", 0): 2, ("rum", 0): 1}


def test_every_click_counts_once():
    clicks = [click("tea", 7_000 * number) for number in range(40)]
    ms.testing.assert_exactly_once(pipeline, clicks, seeds=range(20))
"""

_PYPROJECT = """\
[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["millstream[$extras]>=$version"]

[project.optional-dependencies]
test = ["pytest>=8"]

[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["pipeline"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_README = """\
# $name

`pipeline.py` counts clicks per page and minute, exactly once, $route.

    pip install --find-links wheels -e '.[test]'
    python -m pytest
    $run

Millstream is not published: `pip wheel --no-deps -w wheels FOLDER` puts a wheel of your clone of it, FOLDER, where
the first command finds it. The CI file needs it there, too, so commit it. A run needs Java 17 or newer; the test does not.
"""

_CI = """\
name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.13"
      - run: pip install --find-links wheels -e '.[test]'
      - run: python -m pytest
"""

_IGNORED = "*-checkpoint/\noutput/\n__pycache__/\n*.egg-info/\n.pytest_cache/\n.venv/\n"

_INPUT = """\
{"page": "tea", "at": 1767258001000, "id": "c1"}
{"page": "rum", "at": 1767258002000, "id": "c2"}
{"page": "tea", "at": 1767258059000, "id": "c3"}
{"page": "tea", "at": 1767258062000, "id": "c4"}
"""

_FILES = {
    "imports": "",
    "settings": "",
    "source": 'ms.sources.files("input/", schema="page string, at long, id string")',
    "id": "id",
    "watermark": 'ms.watermarks.bounded("10s")',
    "sink": 'ms.sinks.files("output/")',
    "row": '{"page": page, "at": at, "id": f"{page}-{at}"}',
    "extras": "spark",
    "route": "from the files in `input/` into files in `output/`",
    "run": "millstream run pipeline.py --available-now && cat output/*.jsonl",
}

_KAFKA = {
    "imports": "\nimport os\n",
    "settings": '\nSERVERS = os.environ.get("KAFKA", "localhost:9092")\n',
    "source": 'ms.sources.kafka(SERVERS, "clicks", schema="page string, at long", metadata=["id"])\n'
    'watermark = ms.watermarks.partitions(ms.watermarks.bounded("10s", onward="30s"))',
    "id": "kafka_id",
    "watermark": "watermark",
    "sink": 'ms.sinks.kafka(SERVERS, "counts")',
    "row": '{"page": page, "at": at, "kafka_id": f"{page}-{at}", "kafka_source": "clicks-0"}',
    "extras": "spark,kafka",
    "route": "from topic `clicks` to topic `counts`",
    "run": "KAFKA=localhost:9092 millstream run pipeline.py --resident",
}


def add_command(commands: Commands) -> None:
    new = commands.add_parser(
        "new", help="make a project", description="Makes a folder with a pipeline, its test, a pyproject.toml and a CI file."
    )
    new.add_argument("folder", metavar="NAME", type=Path, help="the folder to make; its last part names the project and its pipeline")
    new.add_argument("--kafka", action="store_true", help="from topic to topic, in place of files")
    new.set_defaults(command=_new)


def _new(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if not _NAME.fullmatch(folder.name):
        return failed(f"{folder.name!r} is no name for a project: letters, digits, and single - or _ between them", 2)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return failed(f"{folder} is there already, and is not an empty folder: give another name", 2)
    words = {**(_KAFKA if args.kafka else _FILES), "name": folder.name, "version": __version__}
    for name, text in project(words).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    print(f"{folder} has a pipeline, pipeline.py, and its test. Next:\n")
    print(f"    cd {shlex.quote(str(folder))}\n    pip install 'pytest>=8'\n    python -m pytest\n    {words['run']}\n")
    print(
        "README.md says what the CI file needs." if not args.kafka else "The topics clicks and counts must be there. README.md says more."
    )
    return 0


def project(words: dict[str, str]) -> dict[str, str]:
    """The files of a project, by their paths in it."""
    templates = {
        "pipeline.py": _PIPELINE,
        "test_pipeline.py": _TEST,
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        ".github/workflows/test.yml": _CI,
        ".gitignore": _IGNORED,
    }
    if words["extras"] == _FILES["extras"]:
        templates["input/clicks.json"] = _INPUT
    return {name: Template(text).substitute(words) for name, text in templates.items()}
