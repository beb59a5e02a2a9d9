"""Given replies: tokens a second of `ajet sft` against TRL's SFTTrainer and DPOTrainer on the same model and rows.

A random Llama of some million weights, rows of mixed lengths, float32. What counts is processor time, all threads
together, of whole steps after the first two: what else the machine does falls on both alike. Tokens are those of the
rows, padding is nobody's. Printed beside it: the share of this machine's own matrix products that a step reaches, by 6
operations a weight and token (DPO: 8 with the reference's pass). Limit: at least TRL's pace, in both,
and also where its SFTTrainer packs rows into blocks, as long as the tokens of one of our steps.

    python benchmarks/bench_sft.py [--steps 8] [--batch 8] [--threads 1] [--width 256]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_learn import trl_folder
from ratios import kept

PEER = Path(__file__).parent / "peers" / "trl_given.py"
WARM = 2
LONGEST = 512
LIMIT = 1.0
WORDS = ("eel", "ham", "jam", "fig", "tea", "pie", "price", "cost", "what", "the", "does", "answer")


def rows(count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Prompts and replies of mixed lengths, two replies a prompt."""

    def text(low: int, high: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(low, high)))

    made = []
    for _ in range(count):
        chosen, rejected = ([{"role": "assistant", "content": text(5, 60)}] for _ in range(2))
        prompt = [{"role": "user", "content": text(10, 90)}]
        made.append({"prompt": prompt, "completion": chosen, "chosen": chosen, "rejected": rejected})
    return made


def write_model(folder: Path, width: int) -> int:
    """A random Llama with the tokenizer that comes with ajet; answers its weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_tokenizer

    torch.manual_seed(0)
    tokenizer = load_tokenizer(locate_model("embedded:tiny-tools"))
    shape = dict(hidden_size=width, intermediate_size=3 * width, num_hidden_layers=6, num_attention_heads=width // 64)
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=4 * LONGEST, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **shape,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def ours(folder: Path, objective: str, options: argparse.Namespace) -> tuple[list[float], list[int]]:
    """Processor seconds and tokens of each step."""
    from ajet.backbone import open_backbone
    from ajet.config import Experiment
    from ajet.rollout.components import make_renderer
    from ajet.train.sft.reading import read_lessons
    from ajet.train.sources.replies import LessonObjective, adapt_to_replies

    tree = {
        "backbone": "local", "model": {"path": str(folder / "model"), "dtype": "float32"},
        "sft": {"objective": objective, "train_files": str(folder / "rows.jsonl")},
        "rollout": {"max_model_len": 4 * LONGEST},
        "trainer_common": {"threads": options.threads, "device": "cpu", "optim": {"lr": 1e-4}},
    }  # fmt: skip
    experiment = Experiment.from_dict({"ajet": tree}, base=folder)
    backbone = open_backbone(adapt_to_replies(experiment))
    lessons = read_lessons(experiment, make_renderer(experiment.ajet, backbone.tokenizer))
    objective_of = LessonObjective(experiment.ajet, backbone)
    seconds, tokens = [], []
    for step in range(options.steps):
        taken = lessons[step * options.batch : (step + 1) * options.batch]
        began = time.process_time()
        backbone.update(
            objective_of.make_batch([each.make_group("bench", step, at) for at, each in enumerate(taken)], step)
        )
        seconds.append(time.process_time() - began)
        tokens.append(sum(given.tokens for lesson in taken for given in lesson.conversations))
    backbone.close()
    return seconds, tokens


def theirs(folder: Path, objective: str, options: argparse.Namespace, block: int = 0) -> tuple[list[float], list[int]]:
    """Processor seconds of each of TRL's steps, and tokens; `block`: rows are packed into blocks of so many."""
    setting = {
        "model": str(folder / "model"), "rows": str(folder / "rows.jsonl"), "objective": objective,
        "batch": 1 if block else options.batch, "steps": options.steps, "threads": options.threads,
        "longest": block or 4 * LONGEST, "packed": block > 0, "output": str(folder / "trl"),
    }  # fmt: skip
    (folder / "setting.json").write_text(json.dumps(setting))
    path = os.pathsep.join([str(trl_folder()), os.environ.get("PYTHONPATH", "")])
    threads = {name: str(options.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, str(PEER), str(folder / "setting.json")], text=True, stdout=subprocess.PIPE,
        env={**os.environ, **threads, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["tokens"]


def bound(width: int, threads: int) -> float:
    """Operations a processor second of this machine's matrix products, as large as the model's."""
    import torch

    torch.set_num_threads(threads)
    left, right = torch.randn(1024, width), torch.randn(width, 3 * width)
    paces = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(20):
            left @ right
        paces.append(20 * 2 * 1024 * width * 3 * width / (time.process_time() - began))
    return max(paces)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps: more than the {WARM} that are not counted")
    limits = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        weights = write_model(folder / "model", options.width)
        made = rows(options.steps * options.batch, random.Random(0))
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
        top = bound(options.width, options.threads)
        print(f"{weights / 1e6:.1f}M weights, {options.batch} rows a step, {options.threads} threads; {top / 1e9:.0f} "
              "Gflop a processor second in matrix products")  # fmt: skip
        for objective, passes in (("sft", 6), ("dpo", 8)):
            seconds, tokens = ours(folder, objective, options)
            peer, _ = theirs(folder, objective, options)
            count = statistics.median(tokens[WARM:])
            mine, their = count / statistics.median(seconds[WARM:]), count / statistics.median(peer[WARM:])
            share = mine * passes * weights / top
            print(f"{objective}: {mine:,.0f} tokens a processor second, {share:.0%} of the bound; TRL {their:,.0f}: "
                  f"{mine / their:.2f} times")  # fmt: skip
            limits.append(kept(f"{objective} tokens a processor second against TRL", mine / their, at_least=LIMIT))
            if objective == "sft":
                peer, packed = theirs(folder, objective, options, block=int(count))
                their = statistics.median(packed[WARM:]) / statistics.median(peer[WARM:])
                print(f"{objective} against TRL's packing: {their:,.0f} tokens, {mine / their:.2f} times")
                limits.append(kept("sft tokens a processor second against TRL's packing", mine / their, at_least=LIMIT))
    return 0 if all(limits) else 1


if __name__ == "__main__":
    sys.exit(main())
