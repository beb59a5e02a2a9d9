"""A large tree's attention, each segment's keys once: equal to a dense mask, and no pair of tokens twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ajet.backbone.local import tree_attention
from ajet.backbone.local.tree_attention import list_pieces, subtree_attention
from ajet.context_tracker.packing import Tree, tree_mask


def random_tree(seed):
    """In preorder: each segment continues the one before it, or one that this continues."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 60, draw.integers(1, 12))
    path, parents = [], []
    for segment in range(lengths.size):
        path = path[: draw.integers(1, len(path) + 1)] if path else []
        parents.append(path[-1] if path else -1)
        path.append(segment)
    return Tree(0, int(lengths.sum()), np.repeat(np.arange(lengths.size), lengths), np.array(parents))


def attended(tree, dtype, kept_heads=2, scaling=None, way=subtree_attention):
    """The output and the gradients of queries, keys and values, of the same numbers in each dtype."""
    draw = torch.Generator().manual_seed(tree.stop)
    q, k, v, weight = (
        torch.randn(1, heads, tree.stop, 16, generator=draw, dtype=torch.float64).to(dtype)
        for heads in (4, kept_heads, kept_heads, 4)
    )
    given = [each.requires_grad_() for each in (q, k, v)]
    out = way(tree, *given, scaling)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), given)]


def masked(tree, q, k, v, scaling):
    mask = torch.from_numpy(tree_mask(tree))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)


@pytest.mark.parametrize("seed", range(8))
def test_each_pair_that_a_tree_sees_is_computed_once(seed):
    tree = random_tree(seed)
    count = np.zeros((tree.stop, tree.stop), int)
    for queries, keys, causal in list_pieces(tree):
        block = np.ones((queries.stop - queries.start, keys.stop - keys.start), int)
        count[queries, keys] += np.tril(block) if causal else block
    assert (count == tree_mask(tree)).all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kept_heads", "scaling"), [(4, None), (2, 0.3), (1, None)])
def test_output_and_gradients_are_those_under_a_mask(seed, kept_heads, scaling):
    tree = random_tree(seed)
    found = attended(tree, torch.float64, kept_heads, scaling)
    for have, want in zip(found, attended(tree, torch.float64, kept_heads, scaling, masked), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_as_exact_as_under_a_mask(dtype):
    """Over all trees: of the distances to float64, the largest of each tensor."""
    far = torch.zeros(2, 4, dtype=torch.float64)
    for seed in range(8):
        tree = random_tree(seed)
        exact = attended(tree, torch.float64, way=masked)
        for row, way in zip(far, (subtree_attention, masked), strict=True):
            found = attended(tree, dtype, way=way)
            row += torch.stack([(a.double() - b).abs().max() for a, b in zip(found, exact, strict=True)])
    assert (far[0] <= 1.25 * far[1]).all(), far


def test_under_autocast_it_is_computed_as_torchs_own_attention_is():
    tree = random_tree(3)
    with torch.autocast("cpu", torch.bfloat16):
        out, *gradients = attended(tree, torch.float32)
    want, *_ = attended(tree, torch.bfloat16)
    assert out.dtype == torch.bfloat16 and all(each.dtype == torch.float32 for each in gradients)
    torch.testing.assert_close(out, want)


def test_what_is_kept_for_the_backward_pass_is_linear():
    tree, kept = random_tree(5), []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    draw = (torch.randn(1, 2, tree.stop, 16, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        subtree_attention(tree, *draw, None)
    assert sum(kept) == 2 * tree.stop * (4 * 16 + 1)


class Pairs(TorchDispatchMode):
    """Counts the pairs of a query and a key that the fused kernel is given in forward passes, and sees masks."""

    count, masks = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            self.count += args[0].shape[2] * args[1].shape[2]
            self.masks += (kwargs or {}).get("attn_mask") is not None
        return function(*args, **(kwargs or {}))


def test_an_update_of_a_long_tree_computes_its_attention_once_and_makes_no_mask(monkeypatch):
    monkeypatch.setattr(tree_attention, "DENSE", 64)
    monkeypatch.setattr(tree_attention, "KEPT", 64)
    tree = random_tree(6)
    q, k, v = (torch.randn(1, heads, tree.stop, 16, requires_grad=True) for heads in (4, 2, 2))
    plan = tree_attention.TreePlan([tree], torch.zeros(tree.stop))
    with Pairs() as pairs:
        tree_attention.tree_attention(torch.nn.Identity(), q, k, v, None, trees=plan)[0].sum().backward()
    given = sum((queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys, _ in list_pieces(tree))
    assert tree.stop > 64 < given and (pairs.count, pairs.masks) == (given, 0)
