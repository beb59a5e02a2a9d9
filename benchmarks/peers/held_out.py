"""Held-out reward of saved checkpoints of the price task, the same for every trainer. beside_peers.py runs it.

    held_out.py SETTING.json STEP=FOLDER ...       one JSON line a checkpoint on standard output

Invariant: no trainer's own code generates here. Each held-out task is played `attempts` times at the training's
temperature by `generate` of transformers, from the same random seed for every checkpoint.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from prices import TOOL, look_up, read_rows, score_reply
from transformers import AutoModelForCausalLM, AutoTokenizer

setting = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(setting["threads"])
tokenizer = AutoTokenizer.from_pretrained(setting["model"])
PAD, END = tokenizer.pad_token_id, tokenizer.eos_token_id


def generate_replies(model: Any, contexts: list[list[int]]) -> list[list[int]]:
    """Sample a reply to each context, without what follows its end."""
    longest = max(map(len, contexts))
    rows = torch.tensor([[PAD] * (longest - len(context)) + context for context in contexts])
    mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    out = model.generate(
        input_ids=rows,
        attention_mask=mask,
        do_sample=True,
        temperature=setting["temperature"],
        top_k=0,
        max_new_tokens=setting["max_reply"],
        eos_token_id=END,
        pad_token_id=PAD,
    )
    replies = out[:, longest:].tolist()
    return [reply[: reply.index(END)] if END in reply else reply for reply in replies]


def use_tools(text: str, prices: dict[str, int]) -> list[str] | None:
    """Return the results of a reply's tool calls, or None if it has no readable call."""
    results = []
    for found in re.findall(r"<tool_call>\s*(.+?)\s*</tool_call>", text, re.DOTALL):
        try:
            call = json.loads(found)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            return None
        results.append(look_up(prices, json.dumps(arguments)) if name == "price" else f"there is no tool {name}")
    return results or None


def encode_results(results: list[str]) -> list[int]:
    """Return the tokens between a reply's text and the next reply, as the chat template writes them."""
    tools = "".join(f"<|im_start|>tool\n{result}<|im_end|>\n" for result in results)
    ids: list[int] = tokenizer.encode(f"<|im_end|>\n{tools}<|im_start|>assistant\n", add_special_tokens=False)
    return ids


def play(model: Any, rows: list[dict[str, Any]]) -> list[float]:
    """Return the reward of one episode per row."""
    contexts = [
        tokenizer.apply_chat_template(
            row["prompt"], tools=[TOOL], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for row in rows
    ]
    lasts, playing = [""] * len(rows), list(range(len(rows)))
    for _ in range(setting["turns"]):
        if not playing:
            break
        replies = generate_replies(model, [contexts[number] for number in playing])
        still = []
        for number, reply in zip(playing, replies, strict=True):
            text = tokenizer.decode(reply)
            results = use_tools(text, json.loads(rows[number]["prices"]))
            lasts[number] = re.sub(r"<tool_call>.*?</tool_call>", "", text, flags=re.DOTALL) if results else text
            if results:
                contexts[number] = contexts[number] + reply + encode_results(results)
                still.append(number)
        playing = still
    return [score_reply(text, row["answer"]) for text, row in zip(lasts, rows, strict=True)]


def main() -> None:
    """Print the mean reward of each held-out task, for each checkpoint."""
    attempts = setting["attempts"]
    rows = [row for row in read_rows("validation", 0) for _ in range(attempts)]
    for argument in sys.argv[2:]:
        step, folder = argument.split("=", 1)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            rewards = play(model, rows)
        means = [sum(rewards[at : at + attempts]) / attempts for at in range(0, len(rewards), attempts)]
        print(json.dumps({"step": int(step), "rewards": means}), flush=True)


main()
