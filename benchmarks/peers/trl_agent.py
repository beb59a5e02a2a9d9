"""The price task by TRL's GRPOTrainer with its tool loop (`environment_factory`). beside_peers.py runs it.

    trl_agent.py SETTING.json        JSON lines of events on standard output

TRL's defaults hold but where the setting says otherwise. One generation batch is one optimizer step, all of whose
sequences are generated, and trained on, in one pass.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from prices import look_up, read_rows, score_reply
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_schema

setting = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(setting["threads"])


def report(event: str, **values: Any) -> None:
    """Print one line for beside_peers.py."""
    print(json.dumps({"event": event, **values}), flush=True)


class Market:
    """The prices of one episode's task, and the tool that tells them."""

    def __init__(self) -> None:
        self._prices: dict[str, int] = {}

    def reset(self, prices: str, **ignored: Any) -> None:
        """Start an episode."""
        self._prices = json.loads(prices)

    def price(self, item: str) -> str:
        """
        The price of an item.

        Args:
            item: The item's name.
        """
        return look_up(self._prices, json.dumps({"item": item}))


def reward(completions: list[Any], answer: list[int], **ignored: Any) -> list[float]:
    """Score the last reply of each episode; an episode that ends with a tool's result has no answer."""
    lasts = [messages[-1] if messages and messages[-1]["role"] == "assistant" else {} for messages in completions]
    return [score_reply(last.get("content") or "", wanted) for last, wanted in zip(lasts, answer, strict=True)]


class Report(TrainerCallback):
    """Prints events, and saves the weights of every second step."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        report("begin")

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        means = trainer._metrics["train"]
        values = {name: means[name][-1] for name in ("reward", "completions/mean_length", "tools/call_frequency")}
        report("step", step=state.global_step, **values)
        if state.global_step % setting["save_every"] == 0:
            folder = str(Path(setting["output"]) / f"step-{state.global_step}")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            report("saved", step=state.global_step)


tokenizer = AutoTokenizer.from_pretrained(setting["model"])
tokenizer.response_schema = qwen3_schema  # the format of tiny-tools' tool calls
config = GRPOConfig(
    output_dir=setting["output"],
    per_device_train_batch_size=setting["tasks"] * setting["repeats"],
    gradient_accumulation_steps=1,
    num_generations=setting["repeats"],
    max_completion_length=setting["max_response"],
    generation_kwargs={"max_new_tokens": setting["max_reply"]},
    max_tool_calling_iterations=setting["turns"] - 1,
    max_steps=setting["steps"],
    learning_rate=setting["lr"],
    lr_scheduler_type="constant",
    adam_beta1=0.9,
    adam_beta2=0.95,
    weight_decay=0.0,
    max_grad_norm=1.0,
    temperature=setting["temperature"],
    top_k=0,
    beta=0.0,
    shuffle_dataset=False,
    gradient_checkpointing=False,
    bf16=setting["bf16"],
    use_cpu=True,
    dataloader_pin_memory=False,
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    report_to="none",
    seed=setting["seed"],
)
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32),
    reward_funcs=reward,
    args=config,
    train_dataset=Dataset.from_list(read_rows("train", setting["seed"])),
    processing_class=tokenizer,
    environment_factory=Market,
    callbacks=[Report()],
)
trainer.train()
report("end")
