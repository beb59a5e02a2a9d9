"""Writes the viewer's page of one run into a single HTML file, with its data and scripts ("frozen").

Invariant: the file fetches nothing, and runs only the package's scripts, listed by hash in its content security policy;
data cannot end its element.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from ajet.record.image_text import image_characters
from ajet.record.plain_json import strict_json
from ajet.schema.errors import UserError
from ajet_viewer import episode_page
from ajet_viewer.app import PAGE, Views
from ajet_viewer.episode_page import Spell

MOST_TOKENS = 2_000_000
"""Maximum number of tokens of all episodes in a file."""
TOKEN_BYTES = 40
"""Approximate size of a token in the file, in bytes; images count as tokens of this size."""
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w.]+";\n', re.MULTILINE)


def build_frozen_page(views: Views, name: str, spell: Spell | None) -> str:
    """Build the HTML text of a run, with the newest episodes up to `MOST_TOKENS` tokens.

    A note on the page says how many older or damaged episodes are left out.

    Args:
        name: the run's name.
        spell: returns the text of token ids, or None without a tokenizer.
    """
    table = views.table(name)
    table.read_new_rows(wait=None)
    all_rows = list(table.rows())
    rows: list[dict[str, Any]] = []
    page_by_uuid: dict[str, Any] = {}
    tokens_by_uuid: dict[str, list[dict[str, Any]]] = {}
    token_budget, damaged = MOST_TOKENS, 0
    for row, line_place in all_rows:
        try:
            episode, outcome = episode_page.read_episode(line_place)
        except (UserError, OSError, ValueError):
            damaged += 1
            continue
        lines = episode_page.list_token_lines(episode)
        page = episode_page.build_episode_page(episode, outcome, step=row["step"])
        image_tokens = image_characters([page["messages"], page["task"]]) // TOKEN_BYTES
        remaining_budget, token_budget = (
            token_budget,
            token_budget - sum(len(line.ids) for line in lines) - image_tokens,
        )
        if token_budget < 0 and rows:
            break
        rows.append(row)
        page_by_uuid[row["uuid"]] = page
        tokens_by_uuid[row["uuid"]] = []
        # The first episode is exported in any case, with as many tokens as there is room for.
        for line in lines:
            token_count = min(len(line.ids), max(0, remaining_budget))
            remaining_budget -= token_count
            tokens_by_uuid[row["uuid"]].append(
                episode_page.build_token_window(episode, line, 0, token_count, spell, limit=token_count)
            )
    left_out = len(all_rows) - len(rows) - damaged
    notes = ["a copy"]
    notes += [f"{left_out} older episodes are not in it"] if left_out else []
    notes += [f"{damaged} damaged episodes are not in it"] if damaged else []
    data = {
        "note": "; ".join(notes),
        "runs": {"runs": [row for row in views.library.runs() if row["name"] == name], "only": None, "keys": []},
        "run": views.run(name),
        "metrics": views.metrics(name, 0),
        "config": views.config(name),
        "episodes": rows,
        "tasks": views.tasks(name),
        "rewards": views.rewards(name),
        "pages": page_by_uuid,
        "tokens": tokens_by_uuid,
    }
    return _assemble_page(strict_json(data))


def _assemble_page(data: str) -> str:
    """Insert styles, scripts and data into the page's HTML.

    The content security policy allows only these scripts and styles, by hash, and no network connection.

    Args:
        data: the run's data as JSON.
    """
    chart_script, page_script = (PAGE / "vendor" / "uplot.js").read_text(), bundle_scripts()
    style = (PAGE / "vendor" / "uplot.css").read_text() + (PAGE / "style.css").read_text()
    policy = (
        f"default-src 'none'; script-src {_hash_script(chart_script)} {_hash_script(page_script)}; "
        f"style-src {_hash_script(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    html_text = (PAGE / "index.html").read_text()
    html_text = re.sub(r'<link rel="stylesheet"[^>]*>\n', "", html_text)
    html_text = re.sub(r"<script[^>]*></script>\n", "", html_text)
    head_end = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>'
    # The data must not end its script element, and U+2028 and U+2029 are line ends in JavaScript.
    escaped_data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    body_end = (
        f'<script type="application/json" id="frozen">{escaped_data}</script>\n'
        f'<script>{chart_script}</script>\n<script type="module">{page_script}</script>\n</body>'
    )
    return html_text.replace("</head>", head_end).replace("</body>", body_end)


def bundle_scripts() -> str:
    """Join the page's JavaScript modules into one script.

    Each module stands after those that it imports, without import and export statements.
    """
    ordered_names: list[str] = []

    def add_module(name: str) -> None:
        """Add the modules that a module imports, then the module."""
        if name in ordered_names or name in visited:
            return
        visited.add(name)
        for imported in re.findall(r'from "\./([\w.]+)";', (PAGE / name).read_text()):
            add_module(imported)
        ordered_names.append(name)

    visited: set[str] = set()
    add_module("app.js")
    scripts = [_IMPORT.sub("", (PAGE / name).read_text()) for name in ordered_names]
    return "\n".join(re.sub(r"^export ", "", script, flags=re.MULTILINE) for script in scripts)


def _hash_script(text: str) -> str:
    """Return the hash by which a content security policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_frozen_page(views: Views, name: str, spell: Spell | None, file: Path) -> None:
    """Write the page of a run to an HTML file. Raises OSError if the file cannot be written."""
    file.write_text(build_frozen_page(views, name, spell), encoding="utf-8")
