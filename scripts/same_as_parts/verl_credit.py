"""The credit of verl without Ray: `python verl_credit.py OUT`, with the code of one version on PYTHONPATH.

A fixed batch of episodes goes through what verl's trainer calls between sampling and saving, with the stand-ins of that
version's tests: rows, the hook that assigns credit, the loss, the optimizer. Into OUT go, for each setting, what the
hook put into verl's queue (advantages, weights), the gradients of every optimizer step, the weights at the end, and the
metrics. A version whose tests have other names has this file with those, and its own is the one that is run.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TC = "trainer_common"
AGGREGATION = f"{TC}.algorithm.loss_aggregation"
KL = {f"{TC}.use_kl_loss": True, f"{TC}.kl_loss_coef": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "sequence": {},
    "token": {AGGREGATION: "token"},
    "sequence-sum": {AGGREGATION: "sequence-sum"},
    "kl": KL,
    "kl in the reward": {f"{TC}.algorithm.use_kl_in_reward": True, f"{TC}.algorithm.kl_in_reward_coef": 0.1},
    "two mini batches of tokens, with everything": {
        f"{TC}.mini_batch_num": 2, **KL, f"{TC}.algorithm.is_cap": 1.5, AGGREGATION: "token"
    },
}  # fmt: skip
STAND_INS = ("tests.contract.verl_update", "tests.verl_update")
"""The second is where the first version that is compared has them."""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
ON_CPU = {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "MASTER_PORT": "0", "HF_HUB_OFFLINE": "1"}
PLUGIN = {"VERL_USE_EXTERNAL_MODULES": "ajet_verl.cpu.platform"}


def main(out: Path) -> None:
    """Raises ImportError where the version's tests have moved."""
    os.environ.update(ALONE | ON_CPU | PLUGIN)

    import numpy as np
    import torch
    from safetensors.numpy import save_file

    from ajet_verl.tests.test_verl_credit import scenarios

    verl_update: Any = import_module(next(name for name in STAND_INS if find_spec(name)))
    torch.set_num_threads(1)
    written: dict[str, Any] = {}

    class Watched(verl_update.Queue):
        """Keeps what is put into it."""

        def kv_batch_put(self, keys: Any, partition_id: str, fields: Any = None, tags: Any = None) -> Any:
            number = len(written)
            for name in fields.keys() if fields is not None else ():
                values = fields[name]
                for key, value in zip(keys, values.unbind() if torch.is_tensor(values) else values, strict=True):
                    if torch.is_tensor(value) and not key.startswith("pad"):
                        written[f"{number:06d}/{key}/{name}"] = value.detach().clone().numpy()
            return super().kv_batch_put(keys, partition_id, fields, tags)

    verl_update.Queue = Watched
    for name, scenario in scenarios(SETTINGS, 1).items():
        torch.manual_seed(0)
        written.clear()
        result = verl_update.run(scenario, 0, 1)
        folder = out / name.replace(" ", "-").replace(",", "")
        folder.mkdir(parents=True)
        save_file({key: np.ascontiguousarray(value) for key, value in written.items()}, folder / "credit.safetensors")
        for number, gradients in enumerate(result["gradients"], 1):
            save_file(gradients, folder / f"gradients-{number}.safetensors")
        save_file(result["weights"], folder / "weights.safetensors")
        with (folder / "metrics.jsonl").open("w") as file:
            for row in result["metrics"]:
                file.write(json.dumps({key: float(value) for key, value in row.items()}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
