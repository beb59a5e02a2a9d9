"""Packages with a plug-in, as an installer leaves them in a folder."""

from __future__ import annotations

from pathlib import Path


def write_plugin(folder: Path, name: str, arguments: str, **modules: str) -> Path:
    """Write a package whose `Plugin` has these arguments, and return the folder, which belongs on the path.

    Args:
        arguments: of the `Plugin`, written as Python, without `name` and `about`.
        modules: further modules of the package by name, as text.
    """
    package, about = folder / name, folder / f"{name}-1.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    head = "from ajet.config.plugin import Command, ConfigKeys, LaunchFlag, Plugin, PluginPart\n"
    plugin = f"{head}PLUGIN = Plugin(name='{name}', about='a test', {arguments})\n"
    for module, text in {"__init__": "", "plugin": plugin, **modules}.items():
        (package / f"{module}.py").write_text(text)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    points = f"[console_scripts]\nx = y:z\n[ajet.plugins]\n{name} = {name}.plugin:PLUGIN\n"
    (about / "entry_points.txt").write_text(points)
    return folder
