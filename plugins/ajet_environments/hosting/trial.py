"""`ajet env try` and `ajet env plan`: call a tool by hand, and measure what the servers cost here.

Invariant: CPU time and memory are measured with the servers of the description. The configured `resources` and the rule
of thumb are printed next to the measurement, and never replace it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from ajet.record.console import console, print_line
from ajet.record.processors import usable_cpus
from ajet.schema.errors import BoundaryError, UserError
from ajet_environments.deployment import (
    EnvironmentDescription,
    EnvironmentPart,
    find_environment_file,
    read_description,
    running,
)
from ajet_environments.deployment.instances import McpInstance, make_starter
from ajet_environments.deployment.workdirs import Workdirs
from ajet_mcp.images import require_images
from ajet_sandbox.engine import find_engine, list_container_pids

RULE = (2, 4.0)
"""Cores and GiB per worker, as AWorld's pages recommend."""
LEAST = (4, 8.0)
"""Cores and GiB of the machine, as AWorld's pages recommend."""
ON_A_MAC = (
    f"Docker on Apple Silicon: the virtual machine's limits count, so give it at least {LEAST[0]} cores and "
    f"{LEAST[1]:.0f} GiB (Settings, Resources); use images for linux/arm64, or enable Rosetta for images of "
    "linux/amd64."
)


@dataclass(frozen=True, slots=True)
class UsageCost:
    """The cost of one operation.

    `seconds`: wall time. `cpu`: CPU seconds of the server's processes. `memory`: MiB afterwards.
    """

    seconds: float
    cpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class ServerMeasurement:
    """A server of the environment and the measured cost of its start."""

    part: EnvironmentPart
    start: UsageCost | None
    """None if the server is off."""


class UsageMeter:
    """Measures CPU and memory of all server processes: child processes, and processes in this process's containers."""

    def __init__(self, description: EnvironmentDescription) -> None:
        images = [part.server.image for part in description.parts if part.server is not None and part.server.image]
        self._programs = {find_engine(image) for image in images}

    def read_cpu_seconds(self) -> float:
        """Return the CPU seconds of all server processes so far, including ended child processes."""
        own_times = os.times()
        total = own_times.children_user + own_times.children_system
        for process in self._list_processes():
            with suppress(psutil.NoSuchProcess):
                process_times = process.cpu_times()
                total += process_times.user + process_times.system
        return total

    def read_memory(self) -> float:
        """Return the memory of all server processes in MiB. Shared pages count once (PSS)."""
        total = 0.0
        for process in self._list_processes():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                has_full_info = hasattr(psutil.Process, "memory_full_info")
                usage = process.memory_full_info() if has_full_info else process.memory_info()
                total += getattr(usage, "pss", 0) or usage.rss
        return total / (1 << 20)

    def _list_processes(self) -> list[psutil.Process]:
        """Return all server processes: descendants of this process, and processes in its containers with theirs."""
        processes = psutil.Process().children(recursive=True)
        for first_pid in (pid for program in self._programs for pid in list_container_pids(program)):
            with suppress(psutil.NoSuchProcess):
                processes += [psutil.Process(first_pid), *psutil.Process(first_pid).children(recursive=True)]
        return processes


def call_by_hand(named: str, tool: str | None, arguments: str) -> None:
    """Print the tools of an environment, or call one and print its cost.

    Args:
        named: name of an environment, or path of its YAML file.
        tool: tool to call; None lists all tools.
        arguments: JSON object of the tool's arguments.

    Raises:
        UserError: the environment or the call cannot be used.
    """
    parsed = _parse_arguments(arguments)
    workdirs = Workdirs()
    try:
        asyncio.run(_list_or_call(_find_description(named), tool, parsed, workdirs))
    finally:
        workdirs.close()


def plan_episodes(named: str, episodes: int) -> Table:
    """Measure the servers once and return a table of what `episodes` concurrent episodes need. Raises UserError."""
    description = _find_description(named)
    workdirs = Workdirs()
    try:
        measured = asyncio.run(_measure_servers(description, workdirs))
    finally:
        workdirs.close()
    return _build_plan(description, measured, episodes)


def measure_machine() -> tuple[int, float]:
    """Return (usable CPU cores, memory in GiB) of this machine."""
    return usable_cpus() or 1, psutil.virtual_memory().total / (1 << 30)


async def _list_or_call(
    description: EnvironmentDescription, tool: str | None, arguments: Mapping[str, Any], workdirs: Workdirs
) -> None:
    """Print the tools of all servers, or call `tool` on the server that has it and print the result.

    Servers are started one after another, unless their tools are known without a start.

    Raises:
        UserError: no server has the tool, or a server fails.
    """
    tool_names: list[str] = []
    meter = _make_meter(description)
    for part in description.parts:
        if part.off:
            print_line(f"the server {part.name} is off: {part.off}")
            continue
        part_tools = [listing["name"] for listing in part.tools]
        if part_tools and tool not in part_tools:  # the tools are known, so the server need not be started
            tool_names += part_tools
            if tool is None:
                console.print(f"{part.name}:", markup=False)
                _print_tools(part.tools)
            continue
        instance, cost = await _start_server(part, workdirs, meter)
        try:
            names = [listing["name"] for listing in instance.tools]
            if tool in names:
                await _print_call(part, instance, str(tool), arguments, meter)
                return
            tool_names += names
            if tool is None:
                console.print(f"the server {part.name} takes {_format_cost(cost)} to start", markup=False)
                _print_tools(instance.tools)
        finally:
            await instance.close()
    if tool is not None:
        raise UserError(
            f"The environment {description.name} has no tool {tool}.", expected=", ".join(tool_names) or "there is none"
        )


def _print_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per tool: name, parameter names, and the first line of its description."""
    for tool in tools:
        parameters = ", ".join(tool["inputSchema"].get("properties", {}))
        description_lines = tool["description"].strip().splitlines()
        print_line(f"  {tool['name']}({parameters})  {description_lines[0] if description_lines else ''}")


async def _print_call(
    part: EnvironmentPart, instance: McpInstance, tool: str, arguments: Mapping[str, Any], meter: UsageMeter
) -> None:
    """Call a tool, and print its result and the cost of the call. Raises UserError if the server fails."""
    cpu_before, started_at = meter.read_cpu_seconds(), time.monotonic()
    try:
        result = await instance.call(tool, arguments)
    except BoundaryError as problem:
        raise UserError(f"The tool {tool} did not answer: {problem}", where=part.name) from problem
    cost = UsageCost(time.monotonic() - started_at, meter.read_cpu_seconds() - cpu_before, meter.read_memory())
    for block in result["content"]:
        print_line(block.get("text") or json.dumps(block))
    failed = "the tool reports a failure; " if result.get("isError") else ""
    console.print(f"({failed}{part.name}: {_format_cost(cost)})", markup=False)


async def _measure_servers(description: EnvironmentDescription, workdirs: Workdirs) -> list[ServerMeasurement]:
    """Start each server once and end it, and return the cost of each start; None for a server that is off."""
    measured, meter = [], _make_meter(description)
    for part in description.parts:
        if part.off:
            measured.append(ServerMeasurement(part, None))
            continue
        instance, cost = await _start_server(part, workdirs, meter)
        await instance.close()
        measured.append(ServerMeasurement(part, cost))
    return measured


async def _start_server(part: EnvironmentPart, workdirs: Workdirs, meter: UsageMeter) -> tuple[McpInstance, UsageCost]:
    """Start one instance of a server, and return it with the cost of its start. Raises UserError."""
    cpu_before, started_at = meter.read_cpu_seconds(), time.monotonic()
    try:
        instance = await make_starter(part, workdirs)("")
    except BoundaryError as problem:
        raise UserError(
            f"The server {part.name} does not start: {problem}", where=f"mcpServers.{part.name}"
        ) from problem
    return instance, UsageCost(
        time.monotonic() - started_at, meter.read_cpu_seconds() - cpu_before, meter.read_memory()
    )


def _make_meter(description: EnvironmentDescription) -> UsageMeter:
    """Make a meter. Raises UserError if an image is missing."""
    require_images([part.server for part in description.parts if part.server is not None])
    return UsageMeter(description)


def _build_plan(description: EnvironmentDescription, measured: list[ServerMeasurement], episodes: int) -> Table:
    """Return a table of the processes, memory and CPU time that `episodes` concurrent episodes need.

    A row per server is followed by the measured sum, the configured `resources`, the rule of thumb, and a verdict on
    this machine.
    """
    headers = ("server", "per", "start", "memory", f"of {episodes} episodes")
    table = Table(*headers, box=None, caption=ON_A_MAC, caption_justify="left")
    memory = cpu = declared_cores = declared_memory = 0.0
    for measurement in measured:
        if measurement.start is None:
            table.add_row(measurement.part.name, measurement.part.per, "off", "", measurement.part.off)
            continue
        count = (
            1 if measurement.part.per == "shared" else min(episodes, measurement.part.limit) + measurement.part.spare
        )
        resources = measurement.part.resources
        declared_cores += resources.cores * count
        declared_memory += (resources.memory or measurement.start.memory) * count
        memory += measurement.start.memory * count
        cpu += 0.0 if measurement.part.per == "shared" or measurement.part.reset else measurement.start.cpu * episodes
        table.add_row(
            measurement.part.name, measurement.part.per,
            f"{measurement.start.seconds:.2f} s, {measurement.start.cpu:.2f} s of a core",
            f"{measurement.start.memory:.0f} MiB{_describe_excess(measurement)}",
            f"{count} processes, {measurement.start.memory * count / 1024:.2f} GiB",
        )  # fmt: skip
    cores, machine_memory = measure_machine()
    table.add_section()
    table.add_row("measured", "", f"{cpu:.0f} s of a core a round", "", f"{memory / 1024:.2f} GiB")
    if any(part.resources.is_set for part in description.parts):
        table.add_row("resources", "", f"{declared_cores:g} cores", "", f"{declared_memory / 1024:.2f} GiB")
        memory = max(memory, declared_memory)
    table.add_row("rule of thumb", "", f"{RULE[0] * episodes} cores", "", f"{RULE[1] * episodes:.0f} GiB")
    # The servers may take at most 80 % of the machine's memory.
    shortages = ["enough memory"] if memory / 1024 >= 0.8 * machine_memory else []
    shortages += [f"{declared_cores:g} cores"] if declared_cores > cores else []
    verdict = f"not {' and not '.join(shortages)}" if shortages else "enough"
    recommended = [f"{LEAST[0]} cores"] if cores < LEAST[0] else []
    recommended += [f"{LEAST[1]:.0f} GiB"] if machine_memory < LEAST[1] else []
    recommendation = f"; {' and '.join(recommended)} are recommended" if recommended else ""
    table.add_row("this machine", "", f"{cores} cores", "", f"{machine_memory:.1f} GiB: {verdict}{recommendation}")
    if description.capacity < episodes:
        table.add_row("capacity", "", "", "", f"{description.capacity}: set `capacity: {episodes}` in the file")
    return table


def _describe_excess(measurement: ServerMeasurement) -> str:
    """Return a note if the server uses more memory after its start than `resources` states."""
    memory_limit = measurement.part.resources.memory
    return (
        f", more than its {memory_limit}"
        if measurement.start is not None and 0 < memory_limit < measurement.start.memory
        else ""
    )


def _find_description(named: str) -> EnvironmentDescription:
    """Return the description of a running environment or, if none runs under the name, of the environment's file."""
    environment = running(named)
    return read_description(Path(environment.file) if environment is not None else find_environment_file(named))


def _parse_arguments(text: str) -> Mapping[str, Any]:
    """Parse a tool's arguments as a JSON object. Raises UserError if the text is anything else."""
    try:
        parsed = json.loads(text)
    except ValueError as problem:
        raise UserError(f"The arguments are not JSON: {problem}", where=text, expected='{"name": "value"}') from None
    if not isinstance(parsed, dict):
        raise UserError("The arguments are not a JSON object.", where=text, expected='{"name": "value"}')
    return parsed


def _format_cost(cost: UsageCost) -> str:
    """Return a cost as text: wall time, CPU time, memory."""
    return f"{cost.seconds * 1000:.0f} ms, {cost.cpu * 1000:.0f} ms of a core, {cost.memory:.0f} MiB"
