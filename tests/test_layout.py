"""The layout of the code: imports go one way, the core is pure, and what is public is what is meant to be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import millstream as ms

ROOT = Path(ms.__file__).parent

#: Who stands above whom: a module may import its own layer and those below it (larger numbers).
LAYERS = {
    "cli": 0,
    "demo": 1,
    "testing": 2,
    "pipeline": 3,
    "handle": 4,
    "status": 5,
    "simulation": 6,
    "engine": 7,
    "sinks": 8,
    "sources": 8,
    "connector": 8,
    "state": 9,
    "core": 10,
    "faults": 11,
    "errors": 11,
}

#: The modules of the connector that decide: messages, states and sessions. The rest are its sockets, files and processes.
PURE_CONNECTOR = {
    "messages",
    "codec",
    "ledger",
    "names",
    "sink_session",
    "worker_session",
    "txnlog",
    "source_tables",
    "source_streams",
    "source_session",
    "push_session",
    "source_frames",
    "intake_batch",
}

#: Modules that decide. Nothing that does input or output, keeps time or draws lots may be imported there.
IMPURE = {
    "os",
    "io",
    "socket",
    "subprocess",
    "threading",
    "asyncio",
    "random",
    "secrets",
    "pathlib",
    "shutil",
    "tempfile",
    "pyspark",
    "pyarrow",
    "lmdb",
    "obstore",
}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Absolute names of what a module imports; under TYPE_CHECKING does not count."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    package = ["millstream", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module or "") if part)
            found.add(name)
            found.update(f"{name}.{alias.name}" for alias in node.names)
    return found


def layer(name: str) -> int | None:
    parts = name.split(".")
    return LAYERS.get(parts[1]) if parts[0] == "millstream" and len(parts) > 1 else None


def test_imports_go_one_way() -> None:
    wrong = []
    for path in modules():
        own = layer(".".join(["millstream", *path.relative_to(ROOT).with_suffix("").parts]))
        if own is None:
            assert path == ROOT / "__init__.py", path
            continue
        for name in imported(path):
            other = layer(name)
            if other is not None and other < own:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_the_core_is_pure() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "core").rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] in IMPURE or name in ("time", "datetime.now")
    ]
    assert not wrong


def test_the_protocol_of_the_connector_is_pure() -> None:
    pure = {ROOT / "connector" / f"{name}.py" for name in PURE_CONNECTOR}
    wrong = []
    for path in pure:
        for name in imported(path):
            other = name.split(".")
            if other[0] in IMPURE | {"ssl", "selectors", "psycopg", "time"}:
                wrong.append(f"{path.name} imports {name}")
            if name.startswith("millstream.connector.") and other[2] not in PURE_CONNECTOR:
                wrong.append(f"{path.name} imports {name}, which is not pure")
    assert not wrong


def test_only_the_spark_engine_imports_pyspark() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in modules()
        if any(name.split(".")[0] in ("pyspark", "py4j") for name in imported(path))
        and not path.is_relative_to(ROOT / "engine" / "spark")
        and path != ROOT / "cli.py"  # quiets Spark's loggers
    ]
    assert not wrong


def test_importing_millstream_does_not_import_spark() -> None:
    code = "import sys, millstream; print([m for m in ('pyspark', 'pyarrow', 'lmdb', 'obstore', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_is_what_is_visible() -> None:
    # submodules become attributes when something imports them; they are no part of the interface
    visible = {name for name in vars(ms) if not name.startswith("_") and not (ROOT / f"{name}.py").exists() and not (ROOT / name).is_dir()}
    assert visible <= set(ms.__all__)
    assert all(hasattr(ms, name) for name in ms.__all__)
    assert ms.__all__ == sorted(ms.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))


def test_no_file_has_grown_past_five_hundred_lines() -> None:
    long = [f"{path.relative_to(ROOT)}: {count}" for path in modules() if (count := len(path.read_text().splitlines())) > 500]
    assert not long
