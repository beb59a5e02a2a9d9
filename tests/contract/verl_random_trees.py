"""verl's FSDP engine over random trees, as packed rows and one row at a time: loss, gradients, log-probabilities.

Both are computed in float64, where nothing but a mistake can tell them apart, and in float32, where each is as far from
float64 as its rounding brings it. In a process that `tests.contract.verl_update` set up, since the environment must be
set before verl is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

EXACT = 1e-11
"""Of the largest gradient, and of loss and log-probability, in float64: 9e-15 was the worst of 12 forests."""
GOAL = 1e-6
"""Of the largest gradient, in float32: what verl's rows and trees were to be apart at most. Where the rows alone are
further than that from float64, nobody can be so near to them and right."""
TIGHT = 3e-5
"""Of the largest gradient, in float32. Any way of computing rows is that far from float64 there: over 50 forests the
mean was 3e-6 and the worst 3e-5 with verl's rows under `sdpa`, with their eager attention and with trees alike."""


FEW_LOGITS = 4 * 379 * 16
"""Bytes of sixteen tokens' logits."""


class _InFloat64(TorchFunctionMode):
    """What asks for float32 (norms, softmax, losses) gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        if func is torch.Tensor.backward:  # it computes chunks again, by such functions
            with self:  # autograd's own functions would leave it
                ones = torch.ones_like(args[0])
                engine: Any = torch.autograd.Variable._execution_engine
                return engine.run_backward(
                    (args[0],), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
                )
        return func(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


@contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        with _InFloat64():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def instead(engine: Any, **values: Any) -> Iterator[None]:
    """Within the block the engine has these attributes."""
    own = {name: getattr(engine, name) for name in values}
    try:
        for name, value in values.items():
            setattr(engine, name, value)
        yield
    finally:
        for name, value in own.items():
            setattr(engine, name, value)


UNSPLIT: dict[str, Any] = {
    "ulysses_device_mesh": None, "ulysses_parallel_group": None, "ulysses_sequence_parallel_size": 1,
    "use_ulysses_sp": False, "get_data_parallel_size": lambda: 1,
}  # fmt: skip
"""Of an engine each rank of which computes whole rows by itself."""


def twin(engine: Any) -> Any:
    """The engine's model by itself."""
    from transformers import AutoModelForCausalLM

    from tests.contract.verl_update import parameters

    model = AutoModelForCausalLM.from_config(engine.module.config, attn_implementation="sdpa")
    weights = {name: torch.from_numpy(values) for name, values in parameters(engine).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@st.composite
def forests(draw: Any) -> list[tuple[list[int], int]]:
    """Rows with the number of their tokens that are not trained: each begins as another one of its tree does."""
    numbers = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        root = numbers.integers(3, 300, draw(st.integers(1, 60))).tolist()
        lines = [root]
        for cut, size in draw(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 24)), min_size=1, max_size=6)):
            base = lines[int(numbers.integers(len(lines)))]
            kept = base[: len(root) + round(cut * (len(base) - len(root)))]
            lines.append(kept + numbers.integers(3, 300, size).tolist())
            rows.append((lines[-1], len(kept)))
    return rows


def batch(rows: list[tuple[list[int], int]], budget: int) -> Any:
    """As verl's worker hands it to the engine."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    from ajet_verl.trainer.losses import GAP, ON_POLICY, WEIGHTS

    draw = np.random.default_rng(len(rows))

    def nested(values: list[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.as_tensor(each) for each in values], layout=torch.jagged)

    replies = [ids[start:] for ids, start in rows]
    numbers = [[draw.normal(size=len(reply)).astype(np.float32) for reply in replies] for _ in range(3)]
    ones = nested([[1] * len(reply) for reply in replies])
    fields = {
        "input_ids": nested([ids for ids, _ in rows]),
        "prompts": nested([ids[:start] for ids, start in rows]),
        "responses": nested(replies),
        "position_ids": nested([list(range(len(ids))) for ids, _ in rows]),
        "response_mask": ones,
        "loss_mask": ones.clone(),
        "advantages": nested(numbers[0]),
        "old_log_probs": nested([-np.abs(each) for each in numbers[1]]),
        "rollout_log_probs": nested([-np.abs(each) for each in numbers[2]]),
        WEIGHTS: nested([[1 / len(rows)] * len(reply) for reply in replies]),
    }
    data = TensorDict(fields, batch_size=[len(rows)])
    flags = {"use_dynamic_bsz": True, "use_remove_padding": False, "use_fused_kernels": False}
    tu.assign_non_tensor(
        data,
        temperature=0.8,
        calculate_entropy=True,
        max_token_len_per_gpu=budget,
        **flags,
        **{GAP: 0.0, ON_POLICY: True},
    )
    return data


def computed(engine: Any, loss: Any, data: Any, packed: bool) -> tuple[float, dict[str, Any], Any]:
    """Loss, gradients, and what a pass without gradient finds of each row."""
    from verl.utils.fsdp_utils import fsdp_version

    from ajet.engine.same_model import set_attention
    from tests.contract.verl_update import gradients

    engine.packed = packed
    engine.theirs = "sdpa"  # of rows, which the settings for a CPU give eager attention
    set_attention(engine.module, engine.attention)
    with engine.train_mode():
        engine.module.zero_grad()  # the optimizer knows no twin
        total = sum(engine.forward_backward_batch(data.clone(), loss)["loss"])
        if engine.use_ulysses_sp and not fsdp_version(engine.module):
            for parameter in engine.module.parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
        found = gradients(engine)
    with engine.eval_mode():
        output = engine.forward_backward_batch(data.clone(), None, forward_only=True)["model_output"]
    return total, found, output


def apart(mine: Any, theirs: Any, rows: list[tuple[list[int], int]]) -> dict[str, float]:
    """How far two computations are from each other; gradients as a share of the second's largest."""
    loss, gradients, output = mine
    wanted_loss, wanted, plain = theirs
    largest = max(float(np.abs(values).max()) for values in wanted.values())
    gaps = {"loss": abs(loss - wanted_loss)}
    gaps["gradient"] = max(float(np.abs(gradients[name] - values).max()) for name, values in wanted.items()) / largest
    for name, key in (("logprob", "log_probs"), ("entropy", "entropy")):
        parts = zip(output[key].unbind(), plain[key].unbind(), rows, strict=True)
        gaps[name] = max(float((a - b)[start - 1 : -1].abs().max()) for a, b, (_, start) in parts)
    return gaps


def check(engine: Any, examples: int) -> dict[str, float]:
    """The worst of all examples, and how far trees and rows are from float64, the geometric means over them. Raises
    AssertionError for an example beyond `EXACT` or `TIGHT`, made as small as can be."""
    from ajet.algorithm import open_algorithm
    from ajet.algorithm.token_loss import TokenLoss
    from ajet.backbone.local import tree_attention
    from ajet_verl.trainer.losses import WeightedSum
    from tests.support.local_fixtures import config_of

    assert engine.packed
    config = config_of(algorithm__mismatch_alarm=None)
    loss = WeightedSum(TokenLoss.from_settings(config.trainer_common, open_algorithm(config)))
    worst = {"loss": 0.0, "gradient": 0.0, "logprob": 0.0, "entropy": 0.0, "exact": 0.0, "total / unique": 0.0}
    whole, exact, rounded = twin(engine), twin(engine).double(), []

    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        forests(), st.sampled_from([64, 256, 4096]), st.sampled_from([1 << 29, FEW_LOGITS]), st.sampled_from([640, 0])
    )
    def alike(rows: list[tuple[list[int], int]], budget: int, head_bytes: int, dense: int) -> None:
        data = batch(rows, max(budget, *(len(ids) for ids, _ in rows)))
        tree_attention.DENSE = dense  # beyond it a tree's attention goes by the keys of its segments
        engine.head_bytes = head_bytes
        mine = computed(engine, loss, data, True)
        shared = sum(len(ids) for ids, _ in rows) / engine.computed
        with instead(engine, module=whole, **UNSPLIT):
            theirs = computed(engine, loss, data, False)
        with in_float64(), instead(engine, module=exact):
            trees = computed(engine, loss, data, True)
            with instead(engine, **UNSPLIT):
                reference = computed(engine, loss, data, False)
        gaps = apart(mine, theirs, rows)
        gaps |= {"total / unique": shared, "exact": max(apart(trees, reference, rows).values())}
        agreed = torch.tensor(list(gaps.values()))  # every rank is to go on, or none
        torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MAX)
        gaps = dict(zip(gaps, agreed.tolist(), strict=True))
        rounded.append([apart(each, reference, rows)["gradient"] for each in (mine, theirs)])
        for name, gap in gaps.items():
            worst[name] = max(worst[name], gap)
        assert gaps["exact"] <= EXACT, gaps
        assert gaps["gradient"] <= TIGHT, gaps
        assert gaps["loss"] <= 1e-6 and gaps["logprob"] <= 5e-5 and gaps["entropy"] <= 5e-5, gaps

    largest_dense = tree_attention.DENSE
    try:
        alike()
    finally:
        tree_attention.DENSE = largest_dense
    (_misled if engine.use_ulysses_sp else _by_itself)(engine)
    trees, rows = np.exp(np.log(np.maximum(rounded, 1e-12)).mean(0)).tolist()
    within = float(np.mean([of_rows <= GOAL for _, of_rows in rounded]))
    return worst | {"trees from float64": trees, "rows from float64": rows, "rows within the goal": within}


def _by_itself(engine: Any) -> None:
    """What trees do not compute goes verl's way, though the model attends by trees."""
    from verl.utils import tensordict_utils as tu

    from ajet.backbone.local import tree_attention
    from ajet.engine.same_model import set_attention

    data = batch([([3, 4, 5, 6, 7], 2), ([3, 4, 8], 2)], 64)
    tu.assign_non_tensor(data, calculate_sum_pi_squared=True)
    engine.packed = True
    set_attention(engine.module, tree_attention.NAME)
    with engine.eval_mode():
        output = engine.forward_backward_batch(data, None, forward_only=True)["model_output"]
    assert float(output["sum_pi_squared"].values().max()) <= 1 and set(output) > {"log_probs"}
    assert engine.module.config._attn_implementation == tree_attention.NAME


def _misled(engine: Any) -> None:
    """Where rows are split, verl's way without flash attention is refused: each rank would see its own part alone."""
    engine.packed = False
    with engine.eval_mode():
        try:
            engine.forward_backward_batch(batch([([3, 4, 5], 1)], 64), None, forward_only=True)
        except AssertionError as error:
            assert "flash attention" in str(error)
        else:
            raise AssertionError("it was computed")
