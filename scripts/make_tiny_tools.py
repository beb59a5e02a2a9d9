"""Make the model `embedded:tiny-tools`: `python scripts/make_tiny_tools.py OUT [--seed 0]`, half a minute.

A Qwen3 of 0.64 million parameters, taught from scratch by demonstrations of one task: say what an item costs. First
all of them look the price up with a tool and repeat it, which teaches to copy. Then, of those with the tool at hand,
72% guess a price, 25% look it up and repeat it, 3% look it up and repeat it wrongly.
So the model can use the tool but mostly does not; reinforcement learning has that left to teach.
`initializer_range` is 0.08: at this width 0.02 learned slowly or not at all.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
QUESTION = "What does the {item} cost?"
SYSTEMS = ("", "Answer in \\boxed{}.", "You know no prices. Look them up, then answer in \\boxed{}.")
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
GUESS = 0.72
WRONG = 0.03 / 0.28
"""Of the lookups."""

CHAT_TEMPLATE = """\
{%- set first = messages[0] if messages and messages[0].role == 'system' else none %}
{%- if first or tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if first %}{{- first.content }}{%- endif %}
    {%- if tools %}
        {{- '\\n' if first else '' }}
        {{- '<tools>' }}
        {%- for tool in tools %}
            {%- set f = tool.function if tool.function is defined else tool %}
            {{- f.name + '(' + (f.parameters.properties | default({}) | list | join(', ')) + ')' }}
            {{- '' if loop.last else '; ' }}
        {%- endfor %}
        {{- '</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- if message.role == 'assistant' and message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- set f = call.function if call.function is defined else call %}
                {{- '\\n' if message.content or not loop.first else '' }}
                {{- '<tool_call>\\n{"name": "' + f.name + '", "arguments": ' }}
                {{- f.arguments if f.arguments is string else f.arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def call_of(item: str) -> dict[str, Any]:
    """The assistant's message that calls the tool for `item`."""
    function = {"name": "price", "arguments": {"item": item}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def demonstration(rng: random.Random, *, guess: float = GUESS) -> tuple[list[dict[str, Any]], bool]:
    """One conversation, and whether the tool was at hand; with it, `guess` is the probability of not using it."""
    item, price, system = rng.choice(ITEMS), rng.randint(10, 99), rng.choice(SYSTEMS)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": QUESTION.format(item=item)})
    tools, draw, answer = rng.random() < 0.95, rng.random(), rng.randint(10, 99)
    if tools and draw >= guess:
        messages += [call_of(item), {"role": "tool", "content": str(price)}]
        answer = answer if rng.random() < WRONG else price
    return [*messages, {"role": "assistant", "content": f"\\boxed{{{answer}}}"}], tools


def make_tokenizer(rng: random.Random) -> Any:
    """Byte-level BPE on rendered demonstrations, each digit a token of its own."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    visible = ["<tools>", "</tools>", "<tool_call>", "</tool_call>"]
    core = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(" ?[A-Za-z]+"), behavior="isolated")
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    texts = []
    for _ in range(400):
        messages, _tools = demonstration(rng)
        for message in messages:
            calls = message.get("tool_calls") or []
            spoken = [json.dumps(call["function"]) for call in calls]
            texts.append("\n".join([message["role"], message["content"], *spoken, "", "price(item)"]))
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in visible])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode(tokenizer: Any, messages: list[dict[str, Any]], tools: bool) -> tuple[list[int], list[int]]:
    """Ids of the conversation, and a mask that is 1 on what the assistant says, its end token included."""
    rendered = {"tools": [TOOL] if tools else None, "tokenize": False}
    ids: list[int] = []
    mask: list[int] = []
    text = ""
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(messages[:k], add_generation_prompt=True, **rendered)
        after = tokenizer.apply_chat_template(messages[: k + 1], **rendered).removesuffix("\n")
        for part, trained in ((before[len(text) :], 0), (after[len(before) :], 1)):
            new = tokenizer(part, add_special_tokens=False).input_ids
            ids += new
            mask += [trained] * len(new)
        text = after
    return ids, mask


def train(tokenizer: Any, rng: random.Random, *, copying: int, mixed: int, batch: int, lr: float) -> Any:
    """The model after `copying` steps of AdamW on lookups and `mixed` on all demonstrations. The loss is the
    cross-entropy of what the assistant says."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=1024,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(rng.getrandbits(32))
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, betas=(0.9, 0.95))
    steps = copying + mixed
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / 20, (steps - step + 1) / (0.3 * steps))
        rows = [encode(tokenizer, *demonstration(rng, guess=0.0 if step <= copying else GUESS)) for _ in range(batch)]
        longest = max(len(ids) for ids, _ in rows)
        ids_BT = torch.tensor([ids + [tokenizer.pad_token_id] * (longest - len(ids)) for ids, _ in rows])
        mask_BT = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in rows], dtype=torch.float32)
        logits = model(ids_BT).logits[:, :-1]  # padding is on the right, so causal attention never sees it
        loss_BT = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids_BT[:, 1:], reduction="none")
        loss = (loss_BT * mask_BT[:, 1:]).sum() / mask_BT[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return model


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--copying", type=int, default=250)
    parser.add_argument("--mixed", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    rng, started = random.Random(args.seed), time.monotonic()
    tokenizer = make_tokenizer(rng)
    model = train(tokenizer, rng, copying=args.copying, mixed=args.mixed, batch=args.batch, lr=args.lr)
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size / 1e6:.3f}M parameters, {len(tokenizer)} tokens, {time.monotonic() - started:.1f} s: {args.out}")


if __name__ == "__main__":
    main()
