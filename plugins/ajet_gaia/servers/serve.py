"""Starts one server: `INTERPRETER -I .../serve.py NAME --root FOLDER`.

Invariant: only this folder is added to the import path, as a package for its relative imports. Neither the working
folder, with modules possibly written by a model, nor ajet's own environment is on the path.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

PACKAGE = "gaia_servers"
HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> None:
    """Serve a server's tools until stdin ends."""
    spec = spec_from_file_location(PACKAGE, HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None and spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    name, off, settings = import_module(f"{PACKAGE}.settings").parse(arguments)
    tool = import_module(f"{PACKAGE}.tool")
    try:
        functions = import_module(f"{PACKAGE}.{name}").tools(settings)
    except tool.ToolError as error:
        sys.exit(f"{name}: {error}")
    tools = [tool.FunctionTool(function) for function in functions]
    import_module(f"{PACKAGE}.mcp").serve(name, tools, settings, unavailable_reason=off)


if __name__ == "__main__":
    main(sys.argv[1:])
