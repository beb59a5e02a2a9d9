"""The import rules between kernel, plug-ins and AWorld's names, as a contract type of import-linter.

Invariant: plug-ins import the kernel and the siblings that `pyproject.toml` declares, tests aside; the kernel imports
neither a plug-in nor AWorld's names; these import the kernel and AWorld's plug-in. Plug-ins are found in the tree,
since import-linter has no patterns for root packages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grimp
from importlinter import Contract, ContractCheck, fields, output

from ajet_testing.packages import AWORLD_NAMES, KERNEL, PLUGINS, find_plugins

AWORLD_PLUGIN = "ajet_aworld"


class PluginContract(Contract):
    """Checks imports between the packages of the repository in the working directory."""

    siblings = fields.SetField(subfield=fields.StringField(), required=False)
    """Allowed imports between plug-ins, each written as "ajet_verl -> ajet_ray"."""

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return the forbidden imports of the kernel's graph, and of one that is built of all plug-ins."""
        plugins = find_plugins(Path.cwd())
        allowed = self._list_allowed(set(plugins))
        graphs = [graph, *([_build_plugin_graph(set(plugins))] if plugins else [])]
        found = sorted(line for each in graphs for line in _list_forbidden(each, allowed))
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["found"]:
            output.print_error(line, bold=False)
        output.new_line()

    def _list_allowed(self, plugins: set[str]) -> dict[str, set[str]]:
        """Return the packages of the repository that each one may import."""
        allowed = {KERNEL: {KERNEL}, **{name: {KERNEL, *AWORLD_NAMES, AWORLD_PLUGIN} for name in AWORLD_NAMES}}
        allowed |= {name: {name, KERNEL} for name in plugins}
        pairs = cast("set[str]", self.siblings or set())  # parsed from the contract's options
        for pair in pairs:
            importer, _, imported = pair.partition(" -> ")
            if importer in plugins:
                allowed[importer].add(imported)
        return allowed


def _build_plugin_graph(plugins: set[str]) -> grimp.ImportGraph:
    sys.path.insert(0, str(Path.cwd() / PLUGINS))
    return grimp.build_graph(*plugins, include_external_packages=True, cache_dir=None)


def _list_forbidden(graph: grimp.ImportGraph, allowed: dict[str, set[str]]) -> Iterator[str]:
    """Yield a line for each import of one package by another that is not allowed to import it."""
    for importer in graph.modules:
        package, _, module = importer.partition(".")
        if package not in allowed or module.partition(".")[0] == "tests":
            continue
        for imported in graph.find_modules_directly_imported_by(importer):
            top = imported.partition(".")[0]
            if top in allowed and top not in allowed[package]:
                details = graph.get_import_details(importer=importer, imported=imported)
                yield f"{importer} -> {imported} (l.{', '.join(str(each['line_number']) for each in details)})"
