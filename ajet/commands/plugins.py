"""`ajet plugins`: print each plug-in with its parts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from rich.markup import escape

from ajet.config.plugin import NAMED_KINDS, Plugin
from ajet.config.plugins import LoadedPlugin, describe_broken_keys, list_added_keys, list_plugins
from ajet.record.console import console, print_line
from ajet.schema.commands import format_extra_install, format_install


def show_plugins() -> int:
    """Print each plug-in with its parts. Return the exit code: 1 if a plug-in or its keys could not be loaded."""
    loaded_plugins = list_plugins()
    for loaded in loaded_plugins:
        name = loaded.plugin.name if loaded.plugin is not None else loaded.place
        console.print(f"[bold]{escape(name)}[/] [dim]{escape(f'({loaded.distribution})')}[/]")
        for line in _describe_plugin(loaded):
            print_line(f"  {line}")
    return int(any(entry.problem or (entry.plugin and describe_broken_keys(entry.plugin)) for entry in loaded_plugins))


def _describe_plugin(loaded: LoadedPlugin) -> Iterator[str]:
    """Yield the lines about a plug-in: its parts, exported names, commands, flags, keys and missing packages."""
    plugin = loaded.plugin
    if plugin is None:
        yield f"not loaded: {loaded.problem}"
        return
    yield plugin.about
    for kind in NAMED_KINDS:
        if names := plugin.list_parts(kind):
            yield f"{kind.replace('_', ' ')}: {', '.join(names)}"
    if plugin.exports:
        yield f"name: {', '.join(f'ajet.{name}' for name in plugin.exports)}"
    if plugin.commands:
        yield f"command: {', '.join(plugin.commands)}"
    if plugin.launch_flags:
        yield f"flag: {', '.join(f'--with-{name}' for name in plugin.launch_flags)}"
    if keys := [*_list_keys(plugin)]:
        yield f"key: {', '.join(keys)}"
    if problem := describe_broken_keys(plugin):
        yield f"not loaded: {problem}"
    if missing := [package for package in plugin.packages if find_spec(package) is None]:
        command = format_extra_install(plugin.extra) if plugin.extra else format_install(*missing)
        yield f"needs {', '.join(missing)}, not installed here: {command}"


def _list_keys(plugin: Plugin) -> Iterator[str]:
    """Yield the dotted configuration keys that the plug-in adds."""
    for added in list_added_keys():
        if added.plugin == plugin.name:
            yield from (".".join(filter(None, ["ajet", added.path, key])) for key in added.model.model_fields)
