"""Trees on verl: an update by verl's FSDP engine, row by row and with what rows share computed once.

One process, a world of one rank, a tiny model. Each scene is one batch, given in turns to verl's own engine (with
torch's fused attention, and with one row a pass or two, whichever an uncounted round finds faster) and to the engine of
`actor_rollout_ref.ajet_trees: true`. verl 0.9.1 has a key of its
own, `actor.use_prefix_grouper`, which its FSDP engine does not read: with it verl computes the same rows, so that it is
no third side.

    group     eight replies of 512 tokens to one prompt of 4,096
    agent     an episode of 16 calls whose context is compacted again and again behind a prompt of 4,096: each line
              leaves another one at a random place
    both      four episodes of such an agent with one prompt
    eager     no trees at all: the rows of `group` by transformers' eager attention, and by torch's fused one

A pass with trees holds twice the longest row's tokens, each counted once; where a scene has more, it is given a second
time with `micro_batch_tokens` that hold all of it, so that nothing is computed twice.

Printed: tokens of all rows over those computed; the bound, which is the same with attention counted (each layer's
products, and 2 multiplications for each pair of tokens and number of a head, of forward and backward pass); the tokens
of a pass of either side; the most resident memory above what was there before, in a round that is not timed; the update
as measured, medians; measured / bound. Goal: at least 0.75. Of `eager`, which has no goal, both times and their ratio.

    python benchmarks/bench_trees.py [--prompt 4096] [--rounds 3] [--tree-rounds 1] [--scenes group,agent,both]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from choices import some_of
from ratios import kept

GOAL = 0.75
Row = tuple[list[int], int]


def rows_of(scene: str, prompt: int) -> list[Row]:
    """Each row with the number of its tokens that are not trained."""
    draw = np.random.default_rng(0)

    def some(count: int) -> list[int]:
        return draw.integers(3, 290, count).tolist()

    begin = some(prompt)
    if scene == "group":
        return [(begin + some(512), prompt) for _ in range(8)]
    rows = []
    for _ in range(4 if scene == "both" else 1):
        lines = [begin]
        for _ in range(16):
            base = lines[int(draw.integers(len(lines)))]
            cut = int(draw.integers(prompt, len(base) + 1))
            lines.append(base[:cut] + some(256))
            rows.append((lines[-1], cut))
    return rows


def work(lengths: list[int], pairs: int, config: Any) -> float:
    """Multiplications of a forward pass: of the layers' products, and of attention."""
    hidden, wide, width = config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim
    linear = 2 * hidden * (width + config.num_key_value_heads * config.head_dim) + 3 * hidden * wide
    return config.num_hidden_layers * (sum(lengths) * linear + 2 * pairs * width)


ENVIRONMENT = {
    "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda",
    "VERL_USE_EXTERNAL_MODULES": "ajet_verl.cpu.platform",
    "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
}  # fmt: skip
"""Of a rank on the CPU, but for its number and theirs. It must be there before verl is imported."""


def engine_of(folder: Path, longest: int = 32768, ranks: int = 1, **common: Any) -> Any:
    """verl's FSDP2 engine with trees, and without an optimizer step ever taken; a row is split over all `ranks`.
    `common`: further settings of `ajet.trainer_common`."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig
    from verl.workers.engine import EngineRegistry

    from ajet.config import Experiment
    from ajet_verl.config import compose_verl_config
    from ajet_verl.trainer.trees import choose_engine

    tree = {
        "backbone": "verl", "model": {"path": str(folder)}, "rollout": {"max_model_len": longest},
        "trainer_common": {"device": "cpu", "strategy": "fsdp2", "n_gpus_per_node": ranks, "use_kl_loss": False,
                           "ulysses_sequence_parallel_size": ranks, **common},
    }  # fmt: skip
    verl = {"actor_rollout_ref": {"ajet_trees": True}}
    experiment = Experiment.from_dict({"ajet": tree, "verl": verl}, base=folder)
    config = OmegaConf.create(compose_verl_config(experiment, model_folder=folder)).actor_rollout_ref
    config.actor.optim.total_training_steps = 1
    model: HFModelConfig = omega_conf_to_dataclass(config.model)
    actor = omega_conf_to_dataclass(config.actor)
    with choose_engine(True):
        engine = EngineRegistry.new(
            model_type="language_model", backend="fsdp2", model_config=model, engine_config=actor.engine,
            optimizer_config=actor.optim, checkpoint_config=actor.checkpoint,
        )  # fmt: skip
    engine.initialize()
    assert engine.packed
    return engine


def batch(rows: list[Row], budget: int) -> Any:
    """As verl's worker hands it over."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def nested(values: list[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.tensor(each) for each in values], layout=torch.jagged)

    fields = {
        "input_ids": nested([ids for ids, _ in rows]),
        "prompts": nested([ids[:start] for ids, start in rows]),
        "responses": nested([ids[start:] for ids, start in rows]),
        "position_ids": nested([list(range(len(ids))) for ids, _ in rows]),
        "response_mask": nested([[1] * (len(ids) - start) for ids, start in rows]),
        "loss_mask": nested([[1] * (len(ids) - start) for ids, start in rows]),
    }
    data = TensorDict(fields, batch_size=[len(rows)])
    tu.assign_non_tensor(data, temperature=1.0, use_dynamic_bsz=True, max_token_len_per_gpu=budget)
    tu.assign_non_tensor(data, use_remove_padding=False, use_fused_kernels=False, calculate_entropy=False)
    return data


def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
    """The sum of all trained tokens' log-probabilities."""
    from verl.workers.utils.padding import no_padding_2_padding

    mask = data["response_mask"].to_padded_tensor(0).bool()
    return no_padding_2_padding(model_output["log_probs"], data)[mask].sum() / 1000, {}


@contextmanager
def fused() -> Iterator[list[int]]:
    """Within the block the calls of torch's fused attention are counted, by a number each: the queries' tokens."""
    from torch.nn import functional

    calls: list[int] = []
    own = functional.scaled_dot_product_attention

    def counted(query: Any, *args: Any, **more: Any) -> Any:
        calls.append(query.shape[-2])
        return own(query, *args, **more)

    functional.scaled_dot_product_attention = counted
    try:
        yield calls
    finally:
        functional.scaled_dot_product_attention = own


def update(engine: Any, rows: list[Row], packed: bool, budget: int, attention: str = "sdpa") -> tuple[float, float]:
    """Processor seconds of the gradients of a batch, by trees or by verl's rows, which attend by `attention`; its
    loss."""
    from ajet.engine.same_model import set_attention

    engine.packed, engine.theirs = packed, attention
    set_attention(engine.module, engine.attention)
    with engine.train_mode(), fused() as calls:
        engine.optimizer_zero_grad()
        began = time.process_time()
        found = engine.forward_backward_batch(batch(rows, budget), loss)
        spent = time.process_time() - began
    used = len(calls) >= engine.module.config.num_hidden_layers
    assert packed or used == (attention == "sdpa"), "rows without the fused kernel are no peer"
    return spent, sum(found["loss"])


def peak(engine: Any, rows: list[Row], packed: bool, budget: int) -> tuple[float, int]:
    """Processor seconds of an update, and the most resident memory meanwhile above what there was before, in bytes."""
    import psutil
    from bench_memory import Peak

    from ajet.backbone.local.machine import release_memory

    release_memory()
    before = psutil.Process().memory_info().rss
    with Peak() as most:
        seconds, _ = update(engine, rows, packed, budget)
    return seconds, most.bytes - before


def measure(engine: Any, scene: str, prompt: int, rounds: int, of_trees: int) -> dict[str, float]:
    """Print a line for each size of a pass; answers what was measured / bound, by name. Of a round trees have
    `of_trees` turns."""
    rows = rows_of(scene, prompt)
    lengths = [len(ids) for ids, _ in rows]
    longest = max(lengths)
    unique, unique_pairs = _unique(rows)
    tried = {budget: peak(engine, rows, False, budget) for budget in (longest, 2 * longest)}
    most = min(tried, key=lambda budget: tried[budget][0])
    passes = {scene: 2 * longest} | ({f"{scene}, one pass": unique} if unique > 2 * longest else {})
    memory, computed = {}, {}
    for name, budget in passes.items():
        memory[name], computed[name] = peak(engine, rows, True, budget)[1], engine.computed
    spent: dict[str, list[float]] = {"": [], **{name: [] for name in passes}}
    losses = {}
    for _ in range(rounds):
        for name, seconds in spent.items():
            for _ in range(of_trees if name else 1):
                found, losses[name] = update(engine, rows, bool(name), passes.get(name, most))
                seconds.append(found)
    assert all(abs(loss - losses[""]) < 1e-3 * abs(losses[""]) for loss in losses.values())
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    config = engine.module.config
    bound = work(lengths, pairs, config) / work([unique], unique_pairs, config)
    by_rows = statistics.median(spent[""])
    shares = {}
    for name, budget in passes.items():
        by_trees = statistics.median(spent[name])
        faster = by_rows / by_trees
        shares[name] = faster / bound
        print(f"{name:15} {len(rows):4} {sum(lengths):9,} {unique:9,} {computed[name]:9,} "
              f"{sum(lengths) / computed[name]:7.2f} {bound:7.2f} {most:7,} {budget:7,} {tried[most][1] / 1e6:8.0f} "
              f"{memory[name] / 1e6:8.0f} {by_rows:8.2f} {by_trees:8.2f} {faster:7.2f} {shares[name]:6.2f}",
              flush=True)  # fmt: skip
    return shares


def eager(engine: Any, prompt: int, rounds: int) -> None:
    """Print what the rows of `group` cost by either attention, one row a pass."""
    rows = rows_of("group", prompt)
    longest = max(len(ids) for ids, _ in rows)
    spent: dict[str, list[float]] = {"sdpa": [], "eager": []}
    for _ in range(rounds):
        for attention, seconds in spent.items():
            seconds.append(update(engine, rows, False, longest, attention)[0])
    fused, plain = (statistics.median(seconds) for seconds in spent.values())
    kept("eager: rows by eager attention / by torch's fused one", plain / fused)
    print(f"eager    {len(rows)} rows of {longest}: {plain:.2f} s by eager attention, {fused:.2f} by the fused one: "
          f"{plain / fused:.2f} times", flush=True)  # fmt: skip


def _unique(rows: list[Row]) -> tuple[int, int]:
    """Tokens of the tree that holds all rows, and the tokens that each of them sees, added up."""
    ordered = sorted(ids for ids, _ in rows)
    count = pairs = 0
    for before, ids in zip([[], *ordered], ordered, strict=False):
        shared = next((at for at, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        count += len(ids) - shared
        pairs += (len(ids) * (len(ids) + 1) - shared * (shared + 1)) // 2
    return count, pairs


def main() -> int:
    """Print the table; 1 below the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree-rounds", type=int, default=1, help="turns of trees in a round, where rows take long")
    parser.add_argument("--scenes", default="group,agent,both", type=some_of("group", "agent", "both", "eager"))
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds: at least 2, for a median")
    os.environ.update(ENVIRONMENT, RANK="0", WORLD_SIZE="1")
    import torch
    import verl  # noqa: F401 - before torch.distributed is asked for anything

    from ajet.backbone.local.machine import bound_kernel_caches
    from ajet.engine.embedded import shipped_folder

    bound_kernel_caches()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = torch.distributed.FileStore(str(Path(folder) / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = shipped_folder("tiny-tools")
        assert model is not None
        engine = engine_of(model)
        print(f"{'':15} {'rows':>4} {'tokens':>9} {'unique':>9} {'computed':>9} {'total/c':>7} {'bound':>7} "
              f"{'a pass':>7} {'trees':>7} {'rows MB':>8} {'trees MB':>8} {'rows s':>8} {'trees s':>8} {'faster':>7} "
              f"{'/bound':>6}")  # fmt: skip
        scenes = arguments.scenes
        if "eager" in scenes:
            scenes.remove("eager")
            eager(engine, arguments.prompt, arguments.rounds)
        found: dict[str, float] = {}
        for scene in scenes:
            found |= measure(engine, scene, arguments.prompt, arguments.rounds, arguments.tree_rounds)
        torch.distributed.destroy_process_group()
    each = [kept(f"{scene}: measured / bound", share, at_least=GOAL) for scene, share in found.items()]
    return int(not all(each))


if __name__ == "__main__":
    sys.exit(main())
