"""Writes the table of folders and modules in docs/architecture.md: a folder's question is the first sentence of its `__init__`.

`python scripts/code_layout.py` rewrites it; `tests/test_docs.py` checks that it is up to date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "src" / "millstream"
_TABLE = re.compile(r"(?<=<!-- made by scripts/code_layout.py -->\n\n).*?(?=\n\n)", re.DOTALL)


def table() -> str:
    """Every folder with its question and its modules."""
    rows = ["| folder | question | modules |", "| --- | --- | --- |"]
    for init in sorted(PACKAGE.rglob("__init__.py")):
        modules = sorted(file.stem for file in init.parent.glob("*.py") if not file.stem.startswith("__"))
        if modules:
            about = " ".join((ast.get_docstring(ast.parse(init.read_text())) or "").split("\n\n")[0].split())
            question = re.split(r"(?<=[.?]) ", about)[0]
            name = f"`{init.parent.relative_to(PACKAGE)}/`" if init.parent != PACKAGE else "(top)"
            rows.append(f"| {name} | {question} | {', '.join(modules)} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with the table of today."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
