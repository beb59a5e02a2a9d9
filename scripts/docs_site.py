"""Build the docs site into build/site: `python -m scripts.docs_site`, a part of `make docs`.

Invariants: docs/README.md is the only list of pages. The site has the layout of the repository, so the relative links
of a page hold in both. A link or anchor that leads nowhere fails the build. So does a block that the site shows
otherwise than CommonMark. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
LIST = "docs/README.md"
"""The list of pages. A `##` heading is a part, a `###` heading a group, and each link of a bullet a page."""
HOME = "README.md"
CONFIG, STYLE = "docs/zensical.toml", "docs/site.css"
CHINESE = "zh"
COUNTED = {"li": "list_item_open", "tr": "tr_open", "pre": "fence", "img": "image"}
"""Elements that a page must have as often as its Markdown has the token."""
Nav = list[dict[str, "str | Nav"]]


class SiteError(Exception):
    """The site cannot be built, or a link of it leads nowhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the folder of `site` (default: build)")
    options = parser.parse_args(arguments)
    try:
        site = build_site(options.root, options.build)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The site is in {site}; `python -m http.server -d {site}` shows it.")
    return 0


def build_site(root: Path, build: Path) -> Path:
    """Build the site and check it. Return its folder. Raises SiteError."""
    source, site = build / "site_source", build / "site"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    nav = read_nav(root)
    pages = copy_pages(root, source, [HOME, LIST, STYLE, *list_pages(nav)])
    config = (root / CONFIG).read_text(encoding="utf-8")
    paths = f'nav = {format_toml([{"Home": HOME}, *nav])}\ndocs_dir = "site_source"\nsite_dir = "site"\n'
    (build / "zensical.toml").write_text(config.replace("[project]\n", f"[project]\n{paths}", 1), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=build, capture_output=True, text=True)
    if done.returncode != 0:
        raise SiteError(f"zensical refuses the pages:\n{done.stdout}{done.stderr[-2000:]}")
    _add_search_language(site)
    problems = [*find_broken_links(site), *find_lost_blocks(pages, site)]
    if problems:
        raise SiteError("\n".join(["The site differs from its pages:", *problems]))
    return site


def _add_search_language(site: Path) -> None:
    """Split Chinese text into words in the search, too: zensical's configuration has one language a site."""
    file = site / "search.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    index["config"]["lang"].append(CHINESE)
    file.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def read_nav(root: Path, page: str = LIST) -> Nav:
    """Return the navigation of a list of pages. The pages of a linked list follow it."""
    nav: Nav = []
    place = nav
    for line in (root / page).read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"(##|###) (.+)", line):
            part: Nav = []
            (nav if heading[1] == "##" or not nav else _last_entries(nav)).append({heading[2]: part})
            place = part
        elif line.startswith("- "):
            for title, target in re.findall(r"\[([^]]+)\]\(([^)#]+\.md)\)", line):
                path = resolve_link(page, target)
                place.append({title.replace("`", ""): path})
                if path.endswith("/README.md") and page == LIST:
                    place += read_nav(root, path)
    return nav


def _last_entries(nav: Nav) -> Nav:
    (entries,) = nav[-1].values()
    assert isinstance(entries, list)
    return entries


def list_pages(nav: Nav) -> Iterator[str]:
    """Yield the pages of a navigation in order."""
    for entry in nav:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from list_pages(target)


def format_toml(nav: Nav) -> str:
    """Return a navigation as a value of TOML."""
    entries = [
        f"{{{json.dumps(title)} = {json.dumps(target) if isinstance(target, str) else format_toml(target)}}}"
        for entry in nav
        for title, target in entry.items()
    ]
    return f"[{', '.join(entries)}]"


def copy_pages(root: Path, source: Path, listed: Sequence[str]) -> dict[str, Counter[str]]:
    """Copy the listed pages, and what they link to. Return the blocks of each page. Raises SiteError."""
    pages: dict[str, Counter[str]] = {}
    waiting = list(dict.fromkeys(listed))
    for path in waiting:
        if not (root / path).is_file():
            raise SiteError(f"{LIST} lists {path}, which does not exist")
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, source / path)
        if not path.endswith(".md"):
            continue
        tokens = list(_walk_tokens(MarkdownIt("commonmark").enable("table").parse((root / path).read_text("utf-8"))))
        pages[path] = Counter(token.type for token in tokens)
        for target in _list_targets(tokens):
            linked = resolve_link(path, target)
            if not (root / linked).is_file():
                raise SiteError(f"{path} links to {target}, which is no file of the repository")
            if linked not in waiting:
                waiting.append(linked)
    return pages


def _walk_tokens(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _walk_tokens(token.children or ())


def _list_targets(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the paths that links and images of a page lead to."""
    for token in tokens:
        address = urlsplit(str(token.attrGet("href") or token.attrGet("src") or ""))
        if address.path and not address.scheme:
            yield unquote(address.path)


def resolve_link(page: str, target: str) -> str:
    """Return the path in the repository of a link on a page."""
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / target).parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


@dataclass
class Document(HTMLParser):
    """The links, anchors and blocks of a built page. Blocks are counted in its article only."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    blocks: Counter[str] = field(default_factory=Counter)
    is_article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_article |= tag == "article"
        if self.is_article:
            self.blocks[tag] += 1
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)

    def handle_endtag(self, tag: str) -> None:
        self.is_article &= tag != "article"


def read_document(file: Path) -> Document:
    document = Document()
    document.feed(file.read_text(encoding="utf-8"))
    return document


def find_broken_links(site: Path) -> list[str]:
    """Return each link of the built pages that leads to no file or anchor of the site."""
    documents = {file: read_document(file) for file in sorted(site.rglob("*.html")) if file.name != "404.html"}
    problems = []
    for file, document in documents.items():
        for link in document.links:
            address = urlsplit(unquote(link))
            if address.scheme or address.netloc:
                continue
            target = (file.parent / address.path).resolve() if address.path else file
            target = target / "index.html" if target.is_dir() else target
            page = file.relative_to(site).as_posix()
            if not target.is_file():
                problems.append(f"{page}: {link} leads to no file")
            elif target in documents and address.fragment and address.fragment not in documents[target].anchors:
                problems.append(f"{page}: {link} leads to no anchor")
    return problems


def find_lost_blocks(pages: dict[str, Counter[str]], site: Path) -> list[str]:
    """Return each page with fewer or more blocks than its Markdown has by CommonMark."""
    problems = []
    for page, tokens in pages.items():
        name = PurePosixPath(page)
        folder = site / name.parent / ("" if name.name == "README.md" else name.stem)
        blocks = read_document(folder / "index.html").blocks
        for tag, kind in COUNTED.items():
            if blocks[tag] != tokens[kind]:
                problems.append(f"{page}: {tokens[kind]} of <{tag}> by CommonMark, {blocks[tag]} on the site")
    return problems


if __name__ == "__main__":
    sys.exit(main())
