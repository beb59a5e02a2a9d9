"""Packages: ajet's own requirements and those of each extra, against what is installed. Nothing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from ajet.backbone.requirements import has_nvidia, look, version_of
from ajet.schema.commands import installs_extra, installs_here
from ajet.schema.errors import Finding, State

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_NOT_FOR_USERS = {"dev"}
_FOR_CPU = ("verl", "vllm")
"""Extras that have a second one, with -cpu after the name, for machines without an NVIDIA GPU."""


def packages(needed: Sequence[str] = ()) -> list[Finding]:
    """`needed` extras are those that the experiment uses: what they miss is a problem. Of a pair of extras for machines
    with and without a GPU, the one for this machine is looked at."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        told = metadata.requires("ajet") or []
    except metadata.PackageNotFoundError:
        text = "ajet runs from a folder and is not installed: its requirements are not known"
        return [Finding("ajet", "warning", text, installs_here())]
    requirements: dict[str, list[Requirement]] = {"": []}
    extras = metadata.metadata("ajet").get_all("Provides-Extra") or []
    for line in told:
        try:
            each = Requirement(line)
        except InvalidRequirement:
            continue
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            requirements[""].append(each)
            continue
        for extra in extras:
            if each.marker.evaluate({"extra": extra}):
                requirements.setdefault(extra, []).append(each)
    own = _own(requirements.pop(""))
    other = {name if not has_nvidia() else f"{name}-cpu" for name in _FOR_CPU}
    shown = sorted(set(requirements) - _NOT_FOR_USERS - other)
    return [own, *(_extra(extra, requirements[extra], extra.removesuffix("-cpu") in needed) for extra in shown)]


def _own(requirements: Sequence[Requirement]) -> Finding:
    wrong, have = look(requirements)
    version = metadata.version("ajet")
    if wrong:
        return Finding("ajet", "problem", f"{version}, but {'; '.join(wrong)}", installs_here())
    shown = {"torch", "transformers", "openai", "pydantic"}
    return Finding("ajet", "ok", f"{version}; " + ", ".join(each for each in have if each.split()[0] in shown))


def _extra(extra: str, requirements: Sequence[Requirement], needed: bool) -> Finding:
    wrong, have = look(requirements)
    topic = f"[{extra}]"
    if not wrong:
        return Finding(topic, "ok", ", ".join(have))
    do = installs_extra(extra)
    if needed:
        return Finding(topic, "problem", f"This experiment needs it, but {'; '.join(wrong)}", do)
    if extra == "vllm" and version_of("verl"):
        text = f"{'; '.join(wrong)}: verl has its own pin"
        return Finding(topic, "note", text, "an environment of its own, for `rollout.engine: vllm` without verl")
    missing = all("not installed" in each for each in wrong)
    state: State = "note" if missing else "warning"
    return Finding(topic, state, "; ".join(wrong), do)
