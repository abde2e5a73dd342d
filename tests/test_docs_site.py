"""The site that `make docs` makes: a page of the API with every public name, every page in its menu, and no link that leads nowhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millstream as ms

ROOT = Path(__file__).parent.parent


@cache
def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(page: str, name: str, module: ModuleType) -> list[str]:
    """The public names of a module that the page says nothing of. Of a class with two names, one is enough."""
    told = {name.removesuffix("`") for name in re.findall(rf"^(?:### |\| `){re.escape(name)}\.(\w+)", page, re.MULTILINE)}
    found = {one: getattr(module, one) for one in script("api_page").names_in(name, module)}
    known = {id(found[one]) for one in told if one in found}
    return [one for one, what in found.items() if id(what) not in known and not isinstance(what, ModuleType)]


def test_the_page_of_the_api_has_every_public_name() -> None:
    pytest.importorskip("grpc")
    page = script("api_page").page()
    for name in ("sources", "sinks", "watermarks", "windows", "testing", "views", "service"):
        module = getattr(ms, name)
        assert script("api_page").names_in(f"ms.{name}", module) and missing(page, f"ms.{name}", module) == []
    assert missing(page, "ms", ms) == []
    assert missing(page.replace("### ms.Pipeline ", "### "), "ms", ms) == ["Pipeline"], "the check can fail"
    anchors = re.findall(r"\{#([\w.]+)\}$", page, re.MULTILINE)
    assert len(anchors) == len(set(anchors)) > 200
    assert "ms.sources.files(\n    path: str | os.PathLike[str],\n    *,\n" in page and " at 0x" not in page


def test_the_menu_has_every_page() -> None:
    menu = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "docs" / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} | set(script("docs_site").PAGES) - {"README.md"}
    assert set(menu) == pages | {"index.md", "docs/api.md"} and len(menu) == len(set(menu)), "the menu is in docs/mkdocs.yml"


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here"></h1><a href="sub/"></a><a href="#here"></a><a href="sub/index.html#there"></a><img src="no.png">'
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<h1 id="there"></h1><a href="../a.html#gone"></a><a href="https://example.org/x#y"></a>')
    assert sorted(script("docs_site").astray(tmp_path)) == ["a.html links to no.png", "sub/index.html links to ../a.html#gone"]


def test_code_that_a_page_links_to_becomes_a_page(tmp_path: Path) -> None:
    target = script("docs_site").target
    assert target("../examples/codes.py", ROOT / "docs", tmp_path) == "../examples/codes.py.md"
    assert (tmp_path / "examples" / "codes.py.md").read_text().startswith("# examples/codes.py\n\n````python\n")
    assert [target(one, ROOT / "docs", tmp_path) for one in ("../README.md", "time.md", "gone.md")] == ["../index.md", "time.md", "gone.md"]


@pytest.mark.slow
def test_all_links_of_the_site_lead_somewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not (Path(sys.executable).parent / "zensical").exists():
        pytest.skip("zensical is not installed")
    site = script("docs_site")
    assert site.main(tmp_path) == 0, capsys.readouterr().out
    html = {page.relative_to(tmp_path / "html").as_posix() for page in (tmp_path / "html").rglob("*.html")}
    assert {f"docs/{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} | {"docs/api.html", "index.html"} <= html
    assert 'id="ms.Pipeline.inject"' in (tmp_path / "html" / "docs" / "api.html").read_text()
    (tmp_path / "html" / "docs" / "time.html").unlink()
    assert any("time.html" in one for one in site.astray(tmp_path / "html")), "the check can fail"
