"""The addition task's training by TRL's GRPOTrainer: run by bench_learn.py with TRL on its path, never by itself.

    trl_grpo.py SETTING.json        one JSON line a step on standard output, then one when it ends

TRL's defaults hold but where the addition task's setting says otherwise: 8 prompts and 8 replies to each in a step,
`pass` sequences at a time, float32 weights under bfloat16 autocast, AdamW, no KL term.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

setting = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(setting["threads"])
tokenizer = AutoTokenizer.from_pretrained(setting["model"])


def right(text: str, answer: int) -> float:
    """1 for the right number in a box."""
    found = re.search(r"\\boxed\{([^}]*)\}", text)
    return float(found is not None and found.group(1).strip() == str(answer))


def reward(completions: list[Any], answer: list[int], **ignored: Any) -> list[float]:
    """TRL's reward function: one number a reply."""
    return [right(reply[0]["content"], wanted) for reply, wanted in zip(completions, answer, strict=True)]


def accuracy(model: Any) -> float:
    """Greedy, over the held-out problems."""
    rows = setting["held_out"]
    tokenizer.padding_side = "left"
    texts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = model.generate(**batch, max_new_tokens=setting["max_tokens"], do_sample=False)
    model.train(was_training)
    replies = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(right(text, row["answer"]) for text, row in zip(replies, rows, strict=True)) / len(rows)


class Report(TrainerCallback):
    """Times each optimizer step; now and then the accuracy, whose time does not count."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        row = {"step": state.global_step, "seconds": time.perf_counter() - self.last}
        if setting["validate_every"] and state.global_step % setting["validate_every"] == 0:
            row["accuracy"] = accuracy(model)
            control.should_training_stop = row["accuracy"] >= setting["target"]
        print(json.dumps(row), flush=True)
        self.last = time.perf_counter()


config = GRPOConfig(
    output_dir=setting["output"],
    per_device_train_batch_size=setting["pass"],
    gradient_accumulation_steps=setting["tasks"] * setting["repeats"] // setting["pass"],
    num_generations=setting["repeats"],
    max_completion_length=setting["max_tokens"],
    max_steps=setting["steps"],
    learning_rate=setting["lr"],
    lr_scheduler_type=setting["schedule"],
    adam_beta1=setting["betas"][0],
    adam_beta2=setting["betas"][1],
    temperature=setting["temperature"],
    beta=0.0,
    bf16=True,
    use_cpu=True,
    dataloader_pin_memory=False,
    save_strategy="no",
    report_to="none",
    seed=0,
)
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32),
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_list(setting["train"]),
    processing_class=tokenizer,
    callbacks=[Report()],
)
trainer.train()
