"""Code blocks of the documentation, and the project that each page builds up.

A block is ```LANGUAGE [title="FILE"]. The blocks of one page belong together: titled YAML blocks are laid over each
other into one file, titled Python blocks are written, and commands run in the folder that holds these files. A block
that cannot run here has the line `<!-- not run: REASON -->` directly before it.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
"""The generated pages."""
PAGES = [
    *sorted(ROOT.glob("README*.md")),
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("skills/*/SKILL.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tutorial").glob("*/README*.md")),
]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<excuse>.+?) -->\n+)?^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^```[ ]*$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    excuse: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        line = text.count("\n", 0, match.start("language")) + 1
        excuse = match["excuse"] or ""
        found.append(Block(page, line, match["language"], title[1] if title else "", match["text"], excuse))
    return found


def commands(block: Block) -> list[list[str]]:
    """The commands of a bash block as words; comments and prompts are left out, continued lines are joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words for words in split if words]


def write_project(page: Path, folder: Path) -> None:
    """Write the files that a page's titled blocks make up. Tutorials and the Makefile are there as in a clone."""
    trees: dict[str, dict] = {}
    for block in blocks(page):
        if block.title:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            if block.language == "yaml":
                merge(trees.setdefault(block.title, {}), yaml.safe_load(block.text))
            else:
                file.write_text(block.text)
    for name, tree in trees.items():
        (folder / name).write_text(yaml.safe_dump(tree, sort_keys=False))
    for name in ("tutorial", "Makefile", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)


def merge(into: dict, more: dict) -> None:
    """Lay `more` over `into`, mapping by mapping."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value
