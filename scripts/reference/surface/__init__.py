"""The public surface of ajet as one text: what users, their programs and other packages may rely on, one item a line.

Main invariant: docs/public_surface.txt equals `describe_surface`, so a removed or changed item is a difference that a
commit shows. The text is read from the code, never from installed extras or the machine, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import unified_diff
from pathlib import Path

from scripts.reference.surface.command_line import list_commands, list_exit_codes
from scripts.reference.surface.environment_variables import list_environment_variables
from scripts.reference.surface.http_routes import (
    list_environment_service,
    list_gateway,
    list_serve,
    list_tool_servers,
)
from scripts.reference.surface.metric_names import list_metrics
from scripts.reference.surface.python_names import (
    list_client,
    list_imported_names,
    list_older_names,
    list_package,
    list_record,
    list_results,
    list_tune,
)
from scripts.reference.surface.settings import (
    list_accepted_keys,
    list_keys,
    list_layers,
    list_other_files,
    list_parts,
)

FILE = "docs/public_surface.txt"
COMMIT_ON_PURPOSE = "commit this difference on purpose: python -m scripts.reference"
_HEAD = """\
# The public surface of ajet, one item a line: what users, their programs and other packages rely on.
# Generated from the code by `python -m scripts.reference`. `make check` shows a difference; commit one on purpose.
"""
SECTIONS: dict[str, Callable[[Path], Iterable[str]]] = {
    "Python: ajet": list_package,
    "Python: ajet.client": list_client,
    "Python: ajet.record": list_record,
    "Python: ajet.tune": list_tune,
    "Python: what these return and take": list_results,
    "Python: further names that pages and users' files import": list_imported_names,
    "Python: names of AgentJet, AWorld Train and AgentRL": list_older_names,
    "Commands: arguments, options, defaults": list_commands,
    "Exit codes": list_exit_codes,
    "YAML: keys, types, defaults": list_keys,
    "YAML: older keys": list_accepted_keys,
    "YAML: names of parts": list_parts,
    "YAML: files and sections beside `ajet:`": list_other_files,
    "YAML: defaults of backbones and presets": list_layers,
    "Metrics": list_metrics,
    "Environment variables": list_environment_variables,
    "HTTP: ajet serve": list_serve,
    "HTTP: gateway": list_gateway,
    "HTTP: ajet env up": list_tool_servers,
    "HTTP: environment service": list_environment_service,
}


def describe_surface(root: Path) -> str:
    """Return the text of docs/public_surface.txt for the checkout at `root`."""
    parts = [_HEAD]
    for title, list_items in SECTIONS.items():
        parts.append("\n".join([f"## {title}", *sorted(set(list_items(root))), ""]))
    return "\n".join(parts)


def compare_surface(recorded: str, current: str) -> str:
    """Return the unified diff of two surfaces; each hunk names the section that it begins in."""
    old = recorded.splitlines()
    return "\n".join(
        f"{line} {_find_section(old, int(line[4:].split(',')[0].split()[0]))}" if line.startswith("@@ -") else line
        for line in unified_diff(old, current.splitlines(), FILE, "the code", lineterm="", n=0)
    )


def _find_section(lines: Sequence[str], number: int) -> str:
    return next((line.removeprefix("## ") for line in reversed(lines[:number]) if line.startswith("## ")), "")
