"""TrinityRunner: implements the commands of ajet (checks, training, export) for the Trinity backbone.

Invariant: nothing of Trinity, ray or torch is imported before `train`.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.schema.errors import UserError
from ajet.train.runner import Runner
from ajet_trinity.package import find_version

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.record.checkpoint import Checkpoint
    from ajet.schema.errors import Finding
    from ajet.store import Address
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet.train.sink import RunSink


class TrinityRunner(Runner):
    """Runs Ray's processes around Trinity's explorer and trainer."""

    def settings(self, experiment: Experiment) -> AjetConfig:
        """Return the experiment's settings: a `trinity:` section cannot change them."""
        from ajet_trinity.config import choose_device, compose_trinity_config
        from ajet_trinity.package import require_trinity

        compose_trinity_config(experiment)
        if find_python(choose_device(experiment)) is None:
            require_trinity()
        return experiment.ajet

    def check(
        self, experiment: Experiment, *, from_store: Address | None = None, looking: bool = False, here: bool = False
    ) -> None:
        """Raise ConfigError if remote samplers shall run the episodes and no store is named.

        Args:
            from_store: address of the store shared with samplers, or None.
            looking: True if the command only shows the experiment; nothing is checked then.
        """
        from ajet.schema.errors import ConfigError
        from ajet_trinity.config import TRAIN, choose_mode

        if not looking and choose_mode(experiment) == TRAIN and from_store is None:
            raise ConfigError(
                "On Trinity, `mode: async` trains on episodes that samplers put into a store, and no store is set.",
                where="ajet.trainer_common.mode: async",
                expected="--from-store ADDRESS, and `ajet sample` running",
            )

    def require(self, experiment: Experiment, options: LaunchOptions) -> None:
        """Raise UserError if several gateways would share one port, or a gateway cannot listen.

        On a GPU machine, restart this command in Trinity's own environment, if that is installed and Trinity cannot be
        imported here.
        """
        from ajet_ray.cluster.gateway_port import require_gateways
        from ajet_trinity.config import choose_device, compose_trinity_config

        config = compose_trinity_config(experiment)
        explorer = config["explorer"]

        def count_gateways() -> int:
            return int(explorer["runner_per_model"]) * int(explorer["rollout_model"]["engine_num"])

        require_gateways(
            experiment, options, count_gateways, named="trinity.explorer.runner_per_model: 1, with one engine"
        )
        if (python := find_python(choose_device(experiment))) is not None:
            continue_in(python)

    def shown(self, experiment: Experiment) -> str:
        """Return Trinity's config without its defaults and without secrets."""
        from ajet.config.document import dump_yaml
        from ajet_ray.printable import make_printable
        from ajet_trinity.config import compose_trinity_config
        from ajet_trinity.package import VERSION

        header = f"---\n# What trinity-rft {VERSION} gets from it.\n"
        user_section = experiment.backbone_overrides.get("trinity", {})
        return header + dump_yaml(make_printable(compose_trinity_config(experiment), user_section))

    def checkup(self, config: AjetConfig | None, *, needed: bool) -> list[Finding]:
        """Check Trinity's version. Returns [] if no experiment needs Trinity."""
        from ajet.schema.errors import Finding
        from ajet_trinity.package import DISTRIBUTION, VERSION, require_trinity

        if not needed:
            return []
        try:
            folder = require_trinity()
        except UserError as error:
            return [Finding(DISTRIBUTION, "problem", error.what, error.do)]
        return [Finding(DISTRIBUTION, "ok", VERSION + (f", in {folder}" if folder is not None else ""))]

    def train(
        self, experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
    ) -> None:
        """Train on Trinity (`ajet_trinity.train`)."""
        from ajet_trinity.train import train_on_trinity

        train_on_trinity(experiment, run, options, interrupts, sink)

    def export(self, checkpoint: Checkpoint, target: Path, dtype: str | None) -> None:
        """Write the model of a checkpoint, which has verl's format, to `target` in Hugging Face layout.

        Args:
            dtype: float32 or bfloat16, or None for the number format of the checkpoint.
        """
        from ajet_ray.merge import merge_checkpoint

        merge_checkpoint(checkpoint.path / checkpoint.state["trinity"] / "actor", target, dtype=dtype)


# Trinity's own Python environment for GPUs, made by `make trinity-gpu`, and the continuation of a command there.
# Invariant: the command continues unchanged, in the same process, before a run writes any file. In the new
# environment Trinity lies next to the interpreter, and the command does not continue a second time. A script
# continues as a script, and `-m` as `-m`, with imports from the working directory (possibly a clone of AgentJet
# with another `ajet`). Another program gets an error with the command to start.
FOLDER = Path("share") / "trinity-gpu"
"""Folder name below ajet's environment."""
SCRIPT = "ajet"
MODULES = ("ajet.__main__", "ajet.launcher", "ajet.cli.launcher")
"""Modules run by `-m ajet` and variants. Another program's file may have the same name."""


def find_python(device: str) -> Path | None:
    """Return the interpreter of Trinity's own environment if a run on GPUs needs it, else None.

    It is not needed if the current interpreter can import Trinity.
    """
    python = Path(sys.prefix) / FOLDER / "bin" / "python"
    return python if device == "cuda" and python.exists() and find_version(None) is None else None


def continue_in(python: Path) -> None:
    """Replace this process by the same command under another interpreter. Never returns.

    Raises:
        UserError: the process runs another program than ajet's command.
    """
    main_spec, is_script = getattr(sys.modules["__main__"], "__spec__", None), Path(sys.argv[0]).name == SCRIPT
    if not is_script and (main_spec is None or main_spec.name not in MODULES):
        raise UserError(
            "Trinity is installed in a separate Python environment, but this program runs in another one.",
            where=sys.executable,
            expected=str(python),
            do=f"{python} {shlex.join(sys.argv)}",
        )
    logger.info("Trinity has a separate Python environment: the command continues with {}", python)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(python.with_name(SCRIPT))] if is_script else ["-m", "ajet"]
    os.execv(python, [str(python), *command, *sys.argv[1:]])
