"""The loop that a person writes first: GRPO on the addition task's sums with transformers alone. bench_naive.py runs
it.

    naive_grpo.py SETTING.json      one JSON line a step on standard output

`generate` with left padding, padded training batches of 16, float32 weights under bfloat16 autocast, AdamW at a fixed
rate, group advantages divided by their deviation, no KL term. Its settings are its own; it is not to be tuned.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

setting = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(setting["threads"])
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(setting["model"])
tokenizer.padding_side = "left"
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
END = tokenizer.convert_tokens_to_ids("<|im_end|>")
model = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, betas=(0.9, 0.95))


def right(text: str, answer: int) -> float:
    """1 for the right number in a box."""
    found = re.search(r"\\boxed\{([^}]*)\}", text)
    return float(found is not None and found.group(1).strip() == str(answer))


def sample(rows: list[dict[str, Any]], temperature: float) -> tuple[Any, torch.Tensor]:
    """Padded prompts, and prompts with replies."""
    texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = model.generate(
            **encoded,
            **how,
            max_new_tokens=setting["max_tokens"],
            eos_token_id=END,
            pad_token_id=tokenizer.pad_token_id,
        )
    return encoded, out


def rewards(rows: list[dict[str, Any]], replies: torch.Tensor) -> list[float]:
    """One a reply."""
    return [
        right(tokenizer.decode(reply, skip_special_tokens=True), row["answer"])
        for reply, row in zip(replies, rows, strict=True)
    ]


def accuracy() -> float:
    """Greedy, over the held-out problems."""
    model.eval()
    encoded, out = sample(setting["held_out"], 0)
    found = rewards(setting["held_out"], out[:, encoded["input_ids"].shape[1] :])
    return sum(found) / len(found)


def update(encoded: Any, out: torch.Tensor, reward: torch.Tensor) -> None:
    """One optimizer step."""
    start = encoded["input_ids"].shape[1]
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
    replies, mask = out[:, start:], torch.ones_like(out[:, start:], dtype=torch.float)
    for row, reply in enumerate(replies):
        ends = (reply == END).nonzero()
        if len(ends):
            mask[row, ends[0, 0] + 1 :] = 0
    keep = (advantage.abs() > 1e-6).nonzero().flatten()
    if not len(keep):
        return
    model.train()
    optimizer.zero_grad()
    total = mask[keep].sum()
    for part in keep.split(16):
        attention = torch.cat([encoded["attention_mask"][part], mask[part].long()], 1)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(out[part], attention_mask=attention).logits[:, start - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, replies[part].unsqueeze(-1)).squeeze(-1)
        (-(advantage[part].unsqueeze(1) * logprobs * mask[part]).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


print(json.dumps({"step": 0, "accuracy": accuracy()}), flush=True)
for step in range(1, setting["steps"] + 1):
    began = time.monotonic()
    tasks, repeats = setting["tasks"], setting["repeats"]
    chosen = [setting["train"][(step * tasks + task) % len(setting["train"])] for task in range(tasks)]
    rows = [row for row in chosen for _ in range(repeats)]
    model.eval()
    encoded, out = sample(rows, 1.0)
    reward = torch.tensor(rewards(rows, out[:, encoded["input_ids"].shape[1] :])).view(tasks, repeats)
    update(encoded, out, reward)
    line: dict[str, Any] = {"step": step, "reward": reward.mean().item(), "seconds": time.monotonic() - began}
    if step % 5 == 0:
        line["accuracy"] = accuracy()
    print(json.dumps(line), flush=True)
