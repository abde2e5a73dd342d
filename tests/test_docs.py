"""The documentation is true: its examples run, its links lead somewhere, the files and names it speaks of exist.

Every ```python block of a page is executed, in order, in one module per page, without Spark. A block after a line `<!-- not run -->` is
only compiled. The commands that begin the README and the tutorial are executed as a user would, on Spark, with their kills; the rows that they print are
those of the page's ```json blocks.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import millstream as ms
from millstream import faults

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_BLOCK = re.compile(r"(?P<mark><!-- not run -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`(?P<name>\w+\.py)`:\n\n```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)  # a block that is to be saved
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:tests|src|docs|benchmarks|examples)/[\w./-]*)`")


def blocks(text: str, language: str) -> Iterator[tuple[int, str, bool]]:
    """(line, code, whether it is run) of every block of a language."""
    for found in _BLOCK.finditer(text):
        if found["language"] == language:
            yield text[: found.start("code")].count("\n") + 1, found["code"], found["mark"] is None


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made = ModuleType("millstream_docs_example")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def execute(page: Path, module: ModuleType) -> int:
    count = 0
    for line, code, is_run in blocks(page.read_text(), "python"):
        compiled = compile("\n" * (line - 1) + code, str(page), "exec")
        if is_run:
            exec(compiled, module.__dict__)
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in _FILE.finditer((ROOT / name).read_text()):  # what a page has the reader save can be imported further down
        monkeypatch.setitem(sys.modules, Path(file["name"]).stem, module)
    count = execute(ROOT / name, module)
    assert count or "```python" not in prose((ROOT / name).read_text()), "every example is marked as not run"
    assert name == "docs/tutorial.md" or not list(tmp_path.iterdir()), (
        "examples leave nothing behind"
    )  # there, the file is the reader's own


def test_the_first_program_puts_out_what_the_readme_shows(module: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    execute(ROOT / "README.md", module)
    rows = [json.loads(line) for _, code, _ in blocks(text, "sh") for line in code.splitlines() if line.startswith("{")]
    shown = [json.loads(line) for _, code, _ in blocks(text, "json") for line in code.splitlines()]
    runner = ms.testing.LocalRunner(module.pipeline)
    runner.push("queries", *rows)
    runner.drain()
    made = [{"key": key, "timestamp": timestamp, "value": value} for key, value, timestamp in runner.output("counts")]
    assert rows and sorted(map(str, made)) == sorted(map(str, shown))


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.parametrize(("name", "kills"), [("README.md", 1), pytest.param("docs/tutorial.md", 1, marks=pytest.mark.soak)])
def test_the_commands_of_a_page_print_what_it_shows(name: str, kills: int, tmp_path: Path) -> None:
    text = (ROOT / name).read_text()
    for found in _FILE.finditer(text):
        (tmp_path / found["name"]).write_text(found["code"])
    commands = [code for _, code, _ in blocks(text, "sh") if "--available-now" in code]
    shown = [line for _, code, _ in blocks(text, "json") for line in code.splitlines()]
    (tmp_path / "commands.sh").write_text("\n".join(commands))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "MILLSTREAM_STATE_CACHE": str(tmp_path / "state_caches"),
    }
    done = subprocess.run(["bash", "commands.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert [line for line in done.stdout.splitlines() if line.startswith("{")] == shown != [], done.stderr
    assert done.stderr.count("Killed") == kills


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.soak
def test_a_job_that_is_submitted_runs_as_the_page_says(tmp_path: Path) -> None:
    """With a session that spark-submit makes, on this machine; its settings are named where they do not suit."""
    import pyspark

    (program,) = [found["code"] for found in _FILE.finditer((ROOT / "README.md").read_text()) if found["name"] == "zeitgeist.py"]
    (submit,) = [code for _, code, _ in blocks((ROOT / "docs" / "deployment.md").read_text(), "python") if code.startswith("# submit.py")]
    (tmp_path / "zeitgeist.py").write_text(program)
    (tmp_path / "submit.py").write_text(submit.replace("/shared/", f"{tmp_path}/"))
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "a.json").write_text('{"term": "tea", "at": 1714564801200, "id": "q1"}\n')
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--py-files",
        "zeitgeist.py",
        "submit.py",
    ]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "src"),
        "MILLSTREAM_STATE_CACHE": str(tmp_path / "r"),
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line for file in (tmp_path / "counts").glob("*.jsonl") for line in file.read_text().splitlines()] == [
        '{"key":"tea","timestamp":1714564802000,"value":1}'
    ]
    said = done.stdout + done.stderr  # spark-submit puts a program's stderr into its own stdout
    assert "this Spark session has spark.sql.adaptive.enabled=true (false is better" in said and "local[N,4] is better" in said


def test_the_systemd_unit_leaves_alone_what_the_table_of_exit_codes_says() -> None:
    (unit,) = [code for _, code, _ in blocks((ROOT / "docs" / "deployment.md").read_text(), "ini")]
    (said,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    table = (ROOT / "docs" / "operations.md").read_text().partition("## Exit codes")[2]
    assert said.split() == re.findall(r"^\| (\d+) \|.*\| (?:no|never) \|$", table, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in _LINK.findall(prose(page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}, but {target.name} has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_named_exist(name: str) -> None:
    missing = {path for path in _PATH.findall((ROOT / name).read_text()) if not (ROOT / path).exists()}
    assert not missing


def test_the_walks_name_files_that_exist_and_never_go_back() -> None:
    text = (ROOT / "docs" / "reading-the-code.md").read_text().partition("## Other questions")[0]
    walks = [re.findall(r"^\| \d+ \| `([\w/]+\.py)`", walk, re.MULTILINE) for walk in text.split("\n## ")[1:]]
    assert len(walks) == 8 and all(len(walk) >= 4 and len(walk) == len(set(walk)) for walk in walks)
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert [path for path in named if not path.startswith("tests/") and not (ROOT / "src" / "millstream" / path).exists()] == []


def test_every_page_of_docs_is_in_the_index() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= {link.partition("#")[0] for link in _LINK.findall((ROOT / "docs" / "index.md").read_text())}


def test_the_crash_table_has_every_crash_point_in_order() -> None:
    rows = re.findall(r"^\| `((?:epoch|task)\.[\w-]+)` \|", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    assert rows == list(faults.POINTS)


def test_the_layout_names_every_module_and_nothing_else() -> None:
    spec = importlib.util.spec_from_file_location("code_layout", ROOT / "scripts" / "code_layout.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert "engine/" in script.table() and script.written(script.PAGE.read_text()) == script.PAGE.read_text(), (
        "run python scripts/code_layout.py"
    )
    assert len(script.PAGE.read_text().splitlines()) <= 250


def test_a_word_is_explained_once() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \| .+ \| `src/", (ROOT / "docs" / "words.md").read_text(), re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert 40 < len(rows) < 52 and len(words) == len(set(words))


def test_every_crash_point_is_in_the_pages_that_explain_the_steps() -> None:
    """The steps of an epoch and of a request are numbered as the points are."""
    epoch, request = ((ROOT / "docs" / name).read_text() for name in ("architecture.md", "views-and-service.md"))
    steps = re.findall(r"^(\d)\. ", epoch.partition("## One epoch")[2].partition("\n## ")[0], re.MULTILINE)
    assert steps == sorted({re.findall(r"\d", point)[0] for point in faults.POINTS})
    assert re.findall(r"`(request\.[\w-]+)`", request) == list(faults.REQUEST_POINTS)


def points_tried(path: Path) -> set[str]:
    """The crash points that a test arms: those that it writes out, those of a slice of `POINTS`, or all, if it goes through them."""
    tree = ast.parse(path.read_text())
    tried = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in faults.POINTS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) == "POINTS":
            tried |= set(eval(compile(ast.Expression(node.value), str(path), "eval"), {"POINTS": faults.POINTS}))
        if isinstance(node, ast.For) and ast.unparse(node.iter) in ("POINTS", "enumerate(POINTS)"):
            tried |= set(faults.POINTS)
    return tried


def test_a_file_that_the_crash_table_cites_has_the_crash_point() -> None:
    rows = re.findall(r"^\| `((?:epoch|task)\.[\w-]+)` \|.*\| ([^|]+) \|$", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    cited = [(point, path) for point, cell in rows for path in _PATH.findall(cell)]
    assert {point for point, _ in cited} == set(faults.POINTS)
    assert [(point, path) for point, path in cited if point not in points_tried(ROOT / path)] == []
    assert "epoch.7-done" not in points_tried(ROOT / "tests" / "crash" / "test_kill.py"), "the check can fail"


def measured(ratio: str) -> list[float]:
    """The numbers that the table of results has for a ratio."""
    row = re.search(rf"^\| `{ratio}`[^|]*\|[^|]*\|([^|]*)\|", (ROOT / "benchmarks" / "README.md").read_text(), re.MULTILINE)
    assert row is not None, ratio
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", row[1])]


def test_a_claim_has_the_same_number_everywhere() -> None:
    slowest, fastest = measured("throughput_vs_tws")[:2]
    claim = f"{int(slowest)} to {int(fastest)} times the throughput of Spark's `transformWithState`"
    assert claim in (ROOT / "README.md").read_text()
    costs = (ROOT / "docs" / "guarantees.md").read_text()
    for ratio, said in (
        ("dedup_costs", "| {:.0%} of throughput"),
        ("strong_costs", "{:.0%} *more*"),
        ("strong_wide_costs", "{:.0%} more |"),
    ):
        assert said.format(measured(ratio)[0]).replace("%", " %") in costs, ratio
    assert f"{measured('latency_all_on_vs_off')[0]} ×" in costs


def test_every_public_name_is_mentioned() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in ms.__all__ if not re.search(rf"\bms\.{name}\b", text)] == []
    assert [name for name in ms.sinks.__all__ if name.islower() and f"ms.sinks.{name}" not in text] == []
    assert [name for name in ms.sources.__all__ if name.islower() and f"ms.sources.{name}" not in text] == []


def test_every_error_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [name for name in ms.errors.BY_NAME if f"| `{name}` |" not in text] == []


@pytest.mark.slow
def test_every_command_and_make_target_exists() -> None:
    from millstream.cli.entry import _parsed, parser

    text = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")  # which speaks of old commands too
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b(?=`|  | #)", text)) <= targets
    commands = set(re.findall(r"`millstream ([a-z-]+)(?: ([a-z-]+))?", text))
    for command, action in commands - {("COMMAND", "")}:
        with pytest.raises(SystemExit) as ended:
            _parsed(parser(), [command, "--help"])
        assert ended.value.code == 0, command
        if command in ("inspect", "serve", "kv", "partitions", "sink") and action:
            with pytest.raises(SystemExit) as ended:
                parser().parse_args([command, action, "--help"])
            assert ended.value.code == 0, f"{command} {action}"
