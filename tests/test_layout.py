"""The layout of the code: imports go one way, the core is pure, and what is public is what is meant to be."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import millstream as ms

ROOT = Path(ms.__file__).parent

#: Who stands above whom: a module may import its own layer and those below it (larger numbers).
LAYERS = {
    "cli": 0,
    "testing": 2,
    "pipeline": 3,
    "handle": 4,
    "monitoring": 5,
    "status": 5,
    "simulation": 6,
    "engine": 7,
    "sinks": 8,
    "sources": 8,
    "connector": 8,
    "service": 8,
    "readable": 8,
    "columnviews": 8,
    "operators": 9,
    "anomalies": 9,
    "state": 9,
    "network": 9,
    "kafka_client": 9,
    "postgres_client": 9,
    "core": 10,
    "reducers": 10,
    "views": 9,
    "faults": 11,
    "extras": 11,
    "errors": 11,
}

#: Imports that go up nevertheless, and why.
EXCEPTIONS = {
    (
        "sources/pushed.py",
        "millstream.engine.spark.intake_source",
    ): "what Spark reads the pushed messages with must be a data source of Spark's",
    (
        "sources/data_source.py",
        "millstream.engine.spark.data_sources",
    ): "a Python data source is PySpark's: what asks its reader must know it",
    ("views/__init__.py", "millstream.readable.relations"): "users look for what reads views, ms.views.read, beside what defines them",
}

#: Folders and modules that decide: messages, states, sessions, formats. They are pure as a whole, and know only each other. The rest of the connector are its
#: sockets, files and processes.
PURE_ROOMS = ("connector/wire", "connector/sink/protocol", "connector/source/protocol", "connector/intake/format.py")

#: Rooms of the connector: what each may import of the others.
ROOMS = {"wire": set(), "intake": {"wire"}, "sink": {"wire"}, "source": {"wire", "intake"}}

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


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(path)))


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """Absolute names of what a module imports; under TYPE_CHECKING does not count."""
    tree = parsed(path)
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
        file = path.relative_to(ROOT).as_posix()
        for name in imported(path):
            other = layer(name)
            if other is not None and other < own and not is_excepted(file, name):
                wrong.append(f"{file} imports {name}")
    assert not wrong


def is_excepted(file: str, name: str) -> bool:
    """Whether an exception names this import; the package on the way there comes with it."""
    return any(file == other and (name == target or target.startswith(f"{name}.")) for other, target in EXCEPTIONS)


def test_every_exception_is_used_and_only_when_it_is_needed() -> None:
    for file, name in EXCEPTIONS:
        tree = parsed(ROOT / file)
        assert name in imported(ROOT / file), f"{file} does not import {name}: take the exception away"
        at_the_top = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert name.rsplit(".", 1)[1] not in at_the_top, f"{file} is to import {name} in the function that needs it"


def test_no_import_is_hidden_from_these_rules() -> None:
    hidden = [
        str(path.relative_to(ROOT))
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
    ]
    assert not hidden


def test_the_core_is_pure() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in ("core", "reducers", "views", "anomalies")
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path)
        if (name.split(".")[0] in IMPURE or name in ("time", "datetime.now"))
        and not (path.name == "law_checks.py" and name == "random")  # a check, by a seed
    ]
    assert not wrong


def test_views_know_core_and_reducers_only() -> None:
    allowed = ("millstream.core", "millstream.reducers", "millstream.views", "millstream.errors")
    wrong = [
        f"{path.name} imports {name}"
        for path in (ROOT / "views").rglob("*.py")
        for name in imported(path)
        if name.startswith("millstream.") and not name.startswith(allowed) and not is_excepted(f"views/{path.name}", name)
    ]
    assert not wrong


def room(name: str) -> str | None:
    """The pure room that a module is in, by its dotted name; None if it is in none."""
    path = name.removeprefix("millstream.").replace(".", "/")
    return next((folder for folder in PURE_ROOMS if f"{path}/".startswith(f"{folder.removesuffix('.py')}/")), None)


@pytest.mark.parametrize("folder", PURE_ROOMS)
def test_a_room_that_decides_is_pure(folder: str) -> None:
    paths = [ROOT / folder] if folder.endswith(".py") else list((ROOT / folder).rglob("*.py"))
    assert len(paths) > 2 or paths == [ROOT / folder]
    wrong = []
    for path in paths:
        for name in imported(path):
            if name.split(".")[0] in IMPURE | {"ssl", "selectors", "psycopg", "time"}:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
            if name.startswith("millstream.connector.") and room(name) is None and not is_package(name):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}, which is not pure")
    assert not wrong


def is_package(name: str) -> bool:
    return (ROOT.parent / name.replace(".", "/")).is_dir()


@pytest.mark.parametrize("own", ROOMS)
def test_the_rooms_of_the_connector_know_only_those_that_they_may(own: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "connector" / own).rglob("*.py")
        for name in imported(path)
        if name.startswith("millstream.connector.") and name.split(".")[2] not in {own} | ROOMS[own]
    ]
    assert not wrong


#: Rooms whose `__init__` is not yet an index of their modules: it is what users import.
NO_INDEX = {ROOT / "__init__.py"}


def index_of(said: str) -> set[str]:
    """The modules that the docstring of a package lists: names at the beginning of a line, before what is said of them."""
    found: set[str] = set()
    for line in said.splitlines():
        names = re.match(r"    ((?:[a-z_0-9]+/?, )*[a-z_0-9]+/?)(?:$|  | )", line)
        if names is not None and not line.startswith("     "):
            found |= set(names[1].split(", "))
    return found


@pytest.mark.parametrize("path", [path for path in sorted(ROOT.rglob("__init__.py")) if path not in NO_INDEX], ids=str)
def test_every_folder_says_which_question_it_answers_and_lists_exactly_its_modules(path: Path) -> None:
    said = ast.get_docstring(parsed(path), clean=False) or ""
    modules = {other.stem for other in path.parent.glob("*.py")} - {"__init__", "__main__"} | {
        f"{other.parent.name}/" for other in path.parent.glob("*/__init__.py")
    }
    assert "?" in said.splitlines()[0] and index_of(said) == modules


def test_no_file_name_exists_twice_in_engine_state_and_simulation() -> None:
    names = Counter(
        path.name for folder in ("engine", "state", "simulation") for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"
    )
    assert not [name for name, count in names.items() if count > 1]


def test_no_docstring_begins_with_the_same() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (ast.get_docstring(node) or "").startswith("The same")
    ]
    assert not wrong


#: Names that are participles and yet do something: each is somebody else's word, or public.
ACTING_PARTICIPLES: set[str] = set()

#: What writes, sends or starts: a function that calls one of these acts.
_ACTS = {
    "put",
    "create",
    "delete",
    "publish",
    "unlink",
    "write",
    "send",
    "sendall",
    "start",
    "commit",
    "claim",
    "kill",
    "rmtree",
    "replace_file",
}


def test_a_function_that_is_named_by_a_participle_does_nothing_but_give() -> None:
    """Its name says what it gives. What writes, sends or starts is a verb."""
    wrong = []
    for folder in ("core", "engine", "state", "simulation"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in nodes(path):
                if isinstance(node, ast.FunctionDef) and re.fullmatch(
                    r"_?(?:[a-z]+ed|said|told|kept|held|shown|known|made|found|given|written)", node.name
                ):
                    calls = {one.func.attr for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)}
                    if calls & _ACTS and node.name not in ACTING_PARTICIPLES:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.name} calls {sorted(calls & _ACTS)}")
    assert not wrong


def test_only_the_spark_engine_imports_pyspark() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in modules()
        if any(name.split(".")[0] in ("pyspark", "py4j") for name in imported(path))
        and not path.is_relative_to(ROOT / "engine" / "spark")
        and path not in (ROOT / "cli" / "run.py", ROOT / "cli" / "files.py")  # one ends the session, one sends a file's classes by value
    ]
    assert not wrong


def test_only_the_state_service_imports_grpc() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in modules()
        if any(name.split(".")[0] in ("grpc", "grpc_health", "grpc_reflection", "google") for name in imported(path))
        and not path.is_relative_to(ROOT / "service")
    ]
    assert not wrong


#: Modules of the state service that decide. They know each other, the contracts of logs and stores, and no gRPC.
PURE_SERVICE = (
    "messages",
    "dispatch",
    "dedup_sessions",
    "staged_txns",
    "state_machine",
    "transforms",
    "functions",
    "range_map",
    "desired_state",
)


@pytest.mark.parametrize("module", PURE_SERVICE)
def test_what_decides_in_the_state_service_is_pure(module: str) -> None:
    allowed = {*PURE_SERVICE, "stores"}
    wrong = []
    for name in imported(ROOT / "service" / f"{module}.py"):
        if name.split(".")[0] in IMPURE | {"ssl", "grpc", "google", "time"}:
            wrong.append(name)
        parts = name.split(".")
        if parts[:2] == ["millstream", "service"] and len(parts) > 2 and parts[2] not in allowed:
            wrong.append(name)
    assert not wrong


def test_importing_millstream_does_not_import_spark() -> None:
    code = "import sys, millstream; print([m for m in ('pyspark', 'pyarrow', 'lmdb', 'obstore', 'rich', 'grpc') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_is_what_is_visible() -> None:
    # submodules become attributes when something imports them; they are no part of the interface
    visible = {name for name in vars(ms) if not name.startswith("_") and not (ROOT / f"{name}.py").exists() and not (ROOT / name).is_dir()}
    assert visible <= set(ms.__all__) | set(vars(builtins))
    assert not set(ms.__all__) & set(vars(builtins)), "import * shadows no builtin"
    assert all(hasattr(ms, name) for name in ms.__all__)
    assert ms.__all__ == sorted(ms.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))


def test_no_file_has_grown_past_five_hundred_lines() -> None:
    long = [f"{path.relative_to(ROOT)}: {count}" for path in modules() if (count := len(path.read_text().splitlines())) > 500]
    assert not long


def nouns() -> dict[str, list[str]]:
    """Where every public class, and every alias of a type, is defined."""
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in parsed(path).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()]
            for name in names:
                if not name.startswith("_"):
                    found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return found


def test_one_noun_has_one_meaning() -> None:
    assert not {name: files for name, files in nouns().items() if len(files) > 1}


def test_what_packages_export_is_defined_once() -> None:
    defined = nouns()
    for package in (ms, ms.sources, ms.sinks, ms.connector, ms.testing):
        unknown = [
            n for n in package.__all__ if n[0].isupper() and not n.isupper() and isinstance(getattr(package, n), type) and n not in defined
        ]
        assert not unknown, package
