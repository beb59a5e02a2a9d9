"""The rows of bench_sft.py by TRL's SFTTrainer or DPOTrainer: run by it with TRL on its path, never by itself.

    trl_given.py SETTING.json        one JSON line at the end: processor seconds of each step

TRL's defaults hold but where both sides must do the same: float32, no recomputed activations, the same rows a step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

setting = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(setting["threads"])
rows = [json.loads(line) for line in Path(setting["rows"]).read_text().splitlines()]
pairs = setting["objective"] == "dpo"


class Clock(TrainerCallback):
    """Processor seconds of each step, all threads together, and tokens of the batches without their padding."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self.began = 0.0

    def on_step_begin(self, *ignored: object, **more: object) -> None:
        self.began = time.process_time()

    def on_step_end(self, *ignored: object, **more: object) -> None:
        self.seconds.append(time.process_time() - self.began)


columns = ("prompt", "chosen", "rejected") if pairs else ("prompt", "completion")
dataset = Dataset.from_list([{name: row[name] for name in columns} for row in rows])
shared = dict(
    output_dir=setting["output"], per_device_train_batch_size=setting["batch"], max_steps=setting["steps"],
    learning_rate=1e-4, gradient_checkpointing=False, bf16=False, use_cpu=True, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, max_length=setting["longest"],
)  # fmt: skip
model = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(setting["model"])
clock = Clock()
if pairs:
    reference = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32)
    trainer = DPOTrainer(
        model, reference, args=DPOConfig(**shared), train_dataset=dataset, processing_class=tokenizer, callbacks=[clock]
    )
else:
    trainer = SFTTrainer(
        model,
        args=SFTConfig(**shared, packing=setting["packed"]),
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[clock],
    )
collate = trainer.data_collator


def counted(rows: list[dict[str, object]]) -> object:
    """The batch, whose tokens are counted."""
    clock.tokens.append(sum(len(row["input_ids"]) for row in rows if "input_ids" in row))  # type: ignore[arg-type]
    return collate(rows)


trainer.data_collator = counted
trainer.train()
print(json.dumps({"seconds": clock.seconds, "tokens": clock.tokens}), flush=True)
