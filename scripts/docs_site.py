"""python scripts/docs_site.py [FOLDER]: the documentation as a site, in FOLDER/html (by default site/html). `make docs` installs what it needs.

The Markdown is what GitHub shows, so links lead from page to page of the repository. It is laid out the same way in FOLDER/pages, with the README as the
first page, a page made of docstrings (api_page.py), and a page for every file of code that somebody links to. What is built is read again: a link that leads
nowhere is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"]
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def lay_out(pages: Path) -> None:
    """Copies every page, with what it links to."""
    sources = [*(ROOT / name for name in PAGES), *(ROOT / "docs").glob("*.md")]
    for source in sources:
        place = source.relative_to(ROOT)
        text = _LINK.sub(lambda found, at=source: target(found[1], at.parent, pages), source.read_text())
        put(pages / ("index.md" if place == Path("README.md") else place), text)
    made = subprocess.run([sys.executable, str(ROOT / "scripts" / "api_page.py")], capture_output=True, text=True, check=True)
    put(pages / "docs" / "api.md", made.stdout)


def target(link: str, folder: Path, pages: Path) -> str:
    """What a link in a page of a folder becomes. Pictures are copied; code, and a licence, become pages."""
    file = (folder / link).resolve()
    if not file.is_file() or not file.is_relative_to(ROOT):
        return link
    place = file.relative_to(ROOT)
    if place == Path("README.md"):
        return link.replace("README.md", "index.md")
    if file.suffix == ".md":
        return link
    if file.suffix == ".png":
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, pages / place)
        return link
    language = "python" if file.suffix == ".py" else "text"
    put(pages / f"{place}.md", f"# {place}\n\n````{language}\n{file.read_text()}````\n")
    return f"{link}.md"


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


class Read(HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        self.links += [value for name in ("href", "src") if (value := given.get(name)) and tag in ("a", "img")]


def astray(html: Path) -> list[str]:
    """The links of a site that lead to no page, or to no place in it."""
    pages = {page.resolve(): Read(page.read_text()) for page in html.rglob("*.html")}
    wrong = []
    for page, read in pages.items():
        for link in read.links:
            path, anchor = urldefrag(link)
            if re.match(r"[a-z]+:|//", path) or page.name == "404.html":
                continue
            to = (page.parent / unquote(path)).resolve() if path else page
            to = to / "index.html" if to.is_dir() else to
            if not to.exists() or (anchor and to in pages and unquote(anchor) not in pages[to].anchors):
                wrong.append(f"{page.relative_to(html.resolve())} links to {link}")
    return wrong


def main(folder: Path) -> int:
    for old in ("pages", "html"):
        shutil.rmtree(folder / old, ignore_errors=True)
    lay_out(folder / "pages")
    shutil.copy(ROOT / "docs" / "site.css", folder / "pages")
    shutil.copy(ROOT / "docs" / "mkdocs.yml", folder)
    built = subprocess.run([str(Path(sys.executable).parent / "zensical"), "build", "--clean"], cwd=folder, capture_output=True, text=True)
    if built.returncode:
        print(built.stdout + built.stderr)
        return built.returncode
    wrong = astray(folder / "html")
    print("\n".join(wrong) or f"the site begins at {folder / 'html' / 'index.html'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))
