"""TrlTrainer: AgentTrainer's engine `trl`.

Invariants: what will not do is said before its process starts; that process ends with this one; what the two tell each
other lies in a folder of their own, so that two trainers of one `run_path` never read each other's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ajet.schema.errors import RunFailed, UserError
from ajet_aworld.trainer.run_processor import RunProcessor
from ajet_trl.package import require_trl
from ajet_trl.settings import SECTION, grpo_settings


class TrlTrainer(RunProcessor):
    """Trains with TRL's GRPOTrainer, in an environment of its own. Agent, data and reward become ajet's, as for every
    engine (`RunProcessor`); the optimizer and the steps are TRL's."""

    backbone = "local"  # whose keys the configuration has
    sections = (SECTION,)

    def __init__(self, run_path: str) -> None:
        super().__init__(run_path)
        self.folder = require_trl()

    def check_config(self, config: Any = None) -> dict[str, Any]:
        """See RunProcessor. Raises ValueError, too, for what GRPOTrainer has not."""
        merged = super().check_config(config)
        grpo_settings(self.experiment(), merged["ajet"].get("trainer_common") or {})
        return merged

    def train(self) -> None:
        """Run it in a process that finds TRL. Raises UserError; RunFailed where the process ends without a word."""
        experiment = self.experiment()
        experiment.require_ready()
        from ajet_ray.shipped_experiment import pack_experiment

        with TemporaryDirectory(prefix="ajet-trl-") as folder:
            told, said = Path(folder) / "told.json", Path(folder) / "failed.json"
            told.write_text(json.dumps({**pack_experiment(experiment, run_id="trl"), "failed": str(said)}))
            environment = dict(os.environ)
            if self.folder is not None:
                paths = [str(self.folder), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
            command = [sys.executable, "-m", "ajet_trl.process", str(told)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            try:
                code = process.wait()
            finally:
                process.kill()  # of one that has ended, nothing
                process.wait()
            if said.exists():
                raise UserError(**json.loads(said.read_text()))
        if code:
            raise RunFailed(f"TRL's process ended with exit code {code}.", do="it says why above")
