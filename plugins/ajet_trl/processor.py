"""TrlTrainer: AgentTrainer's engine `trl`.

Invariants: settings are checked before the process starts; the process ends with this one; both exchange files in a
temporary folder, so trainers with the same `run_path` do not interfere.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ajet.schema.commands import format_install
from ajet.schema.errors import RunFailed, UserError
from ajet_aworld.trainer.run_processor import RunProcessor
from ajet_trl.settings import SECTION, build_grpo_settings


class TrlTrainer(RunProcessor):
    """Trains with TRL's GRPOTrainer in a separate process. Agent, data and reward are ajet's, as for every engine
    (`RunProcessor`); the optimizer and the steps are TRL's."""

    backbone = "local"  # the configuration has the keys of this backbone
    sections = (SECTION,)

    def __init__(self, run_path: str) -> None:
        super().__init__(run_path)
        self.folder = require_trl()

    def check_config(self, config: Any = None) -> dict[str, Any]:
        """Check the configuration as RunProcessor does. Raises ValueError for settings unsupported by GRPOTrainer."""
        merged = super().check_config(config)
        build_grpo_settings(self.experiment(), merged["ajet"].get("trainer_common") or {})
        return merged

    def train(self) -> None:
        """Run the training process. Raises UserError, or RunFailed if the process fails without a message."""
        experiment = self.experiment()
        experiment.require_ready()
        from ajet_ray.shipped_experiment import pack_experiment

        with TemporaryDirectory(prefix="ajet-trl-") as folder:
            order_file, failure_file = Path(folder) / "told.json", Path(folder) / "failed.json"
            order_file.write_text(
                json.dumps({**pack_experiment(experiment, run_id="trl"), "failed": str(failure_file)})
            )
            environment = dict(os.environ)
            if self.folder is not None:
                paths = [str(self.folder), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
            command = [sys.executable, "-m", "ajet_trl.process", str(order_file)]
            # The process ends when its standard input closes, so it does not outlive this process.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            try:
                exit_code = process.wait()
            finally:
                process.kill()  # a process that has ended is not affected
                process.wait()
            if failure_file.exists():
                raise UserError(**json.loads(failure_file.read_text()))
        if exit_code:
            raise RunFailed(f"TRL's process ended with exit code {exit_code}.", do="read its output above")


# Find TRL without importing it.
# Invariant: TRL has one supported version, and verl's processes never find it: verl patches a class which this
# version of TRL does not have. So TRL is installed in a folder (`TRL_FOLDER`) used only by the trainer's process,
# or in an environment without verl.
VERSION = "1.16.0"
"""The supported version of TRL."""
TRL_FOLDER = Path("share") / "trl"
"""Folder below the environment; `make setup` installs TRL there."""


def require_trl() -> Path | None:
    """Return the folder to add to the import path of TRL's process, or None if TRL is importable already.

    Raises:
        UserError: TRL is missing, has another version, or is installed in the same environment as verl.
    """
    folder = Path(sys.prefix) / TRL_FOLDER
    install_command = f"{format_install(f'trl=={VERSION}')} --no-deps --target {shlex.quote(str(folder))}"
    installed_version, separate_version = find_version(None), find_version(folder)
    if installed_version is not None and find_spec("verl") is not None:
        raise UserError(
            f"trl {installed_version} is installed in the same environment as verl.",
            where=sys.prefix,
            expected="a separate environment: verl 0.9.1 patches a class of any trl that it finds, and newer versions "
            "of trl do not have it",
            do=f"uninstall trl, and install it in its separate folder: {install_command}",
        )
    version = installed_version or separate_version
    if version is None:
        raise UserError("The train engine trl needs the package trl, which is not installed.", do=install_command)
    if version != VERSION:
        raise UserError(
            f"trl {version} is installed.",
            where=str(sys.prefix if installed_version else folder),
            expected=f"trl {VERSION}: the adapter uses an experimental interface of its trainer",
            do=format_install(f"trl=={VERSION}") if installed_version else install_command,
        )
    return None if installed_version else folder


def find_version(folder: Path | None) -> str | None:
    """Return the version of TRL in a folder (None: this interpreter's import path), or None if TRL is missing."""
    distributions = (
        metadata.distributions(name="trl") if folder is None else metadata.distributions(name="trl", path=[str(folder)])
    )
    return next((distribution.version for distribution in distributions), None)
