"""VerlRunner: the verl backbone's part of a launch.

Invariant: verl, ray and torch are not imported before `train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
        """Return the settings effective in verl."""
        from ajet_verl.config.credit import read_credit_settings
        from ajet_verl.settings import build_settings

        return read_credit_settings(build_settings(experiment))

    def apply_sections(self, experiment: Experiment, from_store: Address | None = None) -> Experiment:
        """Return the experiment with the values effective in verl."""
        from ajet_verl.config.precedence import apply_sections

        if from_store is not None:
            from ajet_verl.settings import build_settings
            from ajet_verl.train import require_one_sampling

            require_one_sampling(experiment.ajet, build_settings(experiment))
        return apply_sections(experiment)

    def describe_overridden(self, experiment: Experiment) -> str:
        """Return a line for each key overridden by verl's own sections."""
        from ajet_verl.config.precedence import describe_overridden, find_overridden

        return describe_overridden(find_overridden(experiment))

    def describe_replaced_defaults(self, experiment: Experiment) -> str:
        """Return lines for the verl defaults replaced by ajet."""
        from ajet_verl.config.defaults import describe_replaced_defaults

        return describe_replaced_defaults(experiment)

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Require a store if samplers play, and settings that samplers can follow."""
        if looking or (from_store is None and experiment.ajet.trainer_common.mode != "async"):
            return
        from ajet_verl.settings import build_settings
        from ajet_verl.train import require_one_sampling, require_store

        config = build_settings(experiment)
        require_store(config, from_store)
        if from_store is not None:
            require_one_sampling(experiment.ajet, config)

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Require a free port for each gateway."""
        from ajet_ray.cluster.gateway_port import require_gateways

        require_gateways(experiment, options, lambda: self._count_gateways(experiment), named=PROCESSES)

    def _count_gateways(self, experiment: Experiment) -> int:
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
        """Return the names printed by nvidia-smi; None for NPUs."""
        from ajet_ray.cluster.gpus import list_gpus
        from ajet_verl.settings import find_device

        found = list_gpus()
        if find_device(found[0].total if found else None) == "cpu":
            return None
        return " ".join(each.name for each in found)

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Return the version findings; empty without verl, which the package findings report."""
        from ajet_verl.checkup import check_verl

        return check_verl(config.rollout.name if config is not None else "vllm", needed=needed)

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train on verl (`ajet_verl.train`)."""
        from ajet_verl.train import train_on_verl

        train_on_verl(experiment, run, options, interrupts, sink)

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Merge verl's shards into one checkpoint."""
        from ajet_ray.merge import merge_checkpoint

        merge_checkpoint(checkpoint.path / checkpoint.state["verl"] / "actor", target, dtype=dtype)
