"""PackedRow: samples in rows of tokens, with shared prefixes stored once and without padding.

Invariant: along the path of a sample, a row holds exactly the sample's tokens at positions 0, 1, 2 …; each token with a
loss of each sample is a target exactly once; a tree stores no token twice. Each `Sample` is in one tree. A forward pass
under the tree's mask therefore computes the same as a pass over the sample alone.

Samples of one group and adapter with a common prefix form a tree; a row has one adapter. Trees of several groups are
joined (the same system prompt or examples) if the shared prefix saves more than the larger attention costs. Rows are
filled up to `budget` tokens. A larger tree is split where repeating the shared prefixes costs least. A single sample
longer than the budget gets a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ajet.schema.batch import Sample
from ajet.schema.call import Floats, Ids

Indices = npt.NDArray[np.int64]
SMALL = 640
"""Tokens up to which the attention of a tree is one call with a dense mask; larger trees go segment by segment."""
LONG = 256
"""Tokens that groups must share to form a tree larger than `SMALL`."""
PAIRS = 1500
"""Pairs of tokens whose attention takes as long as one token's linear layers. Measured at model width 500; a wider
model needs fewer pairs."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tokens [start, stop) of a packed row: sequences with shared prefixes. Shapes: n = stop - start, S segments.

    A segment is a run of tokens without a branch. Segments are in preorder: the descendants of a segment follow it
    without a gap.
    """

    start: int
    stop: int
    segment_of: Indices
    """Shape [n]: the segment of each token."""
    parents: Indices
    """Shape [S]: the segment before each segment; -1 for the root."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens of a row that are trained [K], ordered by the index of the token that predicts them."""

    source: Indices
    """Index into the row of the token whose logits predict the target."""
    token: Indices
    """The token id to predict."""
    sample: Indices
    """Index into the samples given to `pack`."""
    offset: Indices
    """Index of the target within its sample's timeline."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The tokens of one forward pass [N].

    Token i attends to token j exactly if both are in the same tree, j <= i, and j's segment is i's or an ancestor.
    """

    ids: Ids
    """Shape [N]: the token ids."""
    positions: Ids
    """Shape [N]: the index of each token within its sample."""
    trees: list[Tree]
    targets: Targets
    adapter: str | None = None
    """The adapter of all samples in the row."""


def pack(samples: Sequence[Sample], budget: int, *, share_prefixes: bool = True) -> list[PackedRow]:
    """Pack samples into rows of at most `budget` tokens. A longer sample gets a longer row. Deterministic.

    Raises:
        ValueError: The first token of a timeline has mask 1, although no token predicts it.
    """
    for index, sample in enumerate(samples):
        if sample.timeline.mask.size and sample.timeline.mask[0]:
            raise ValueError(f"sample {index} of episode {sample.episode}: its first token cannot be a target")
    trees = [_build_tree(samples, members) for members in _iterate_families(samples, budget, share_prefixes)]
    trees.sort(key=lambda tree: (-tree.ids.size, tree.members[0]))
    rows: list[list[_SampleTree]] = []
    free_tokens: list[int] = []
    for tree in trees:
        size, adapter = tree.ids.size, _find_adapter(samples, tree)
        fitting_rows = (index for index, free_count in enumerate(free_tokens) if free_count >= size)
        row = next((index for index in fitting_rows if _find_adapter(samples, rows[index][0]) == adapter), None)
        if row is None:
            rows.append([])
            free_tokens.append(budget)
            row = len(rows) - 1
        rows[row].append(tree)
        free_tokens[row] -= size
    return [_build_row(samples, row) for row in rows]


def placed(samples: Sequence[Sample], rows: Sequence[PackedRow], values: Sequence[Floats]) -> list[Floats]:
    """Return values of all rows as one array [T] per sample, with 0 at tokens that are no targets.

    Args:
        samples: The samples given to `pack`.
        rows: Its result.
        values: For each row, the values of its targets [K].
    """
    rows_of_values = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    for row, row_values in zip(rows, values, strict=True):
        for index in np.unique(row.targets.sample).tolist():
            is_of_sample = row.targets.sample == index
            rows_of_values[index][row.targets.offset[is_of_sample]] = row_values[is_of_sample]
    return rows_of_values


def tree_mask(tree: Tree) -> npt.NDArray[np.bool_]:
    """Return the attention mask [n, n]: True if the row's token attends to the column's."""
    count = tree.parents.size
    ancestor = np.eye(count, dtype=np.bool_)
    for segment, parent in enumerate(tree.parents):
        if parent >= 0:
            ancestor[segment] |= ancestor[parent]
    is_visible = ancestor[tree.segment_of[:, None], tree.segment_of[None, :]]
    return np.tril(is_visible)


@dataclass(frozen=True, slots=True)
class _SampleTree:
    """A tree without a place in a row yet."""

    members: list[int]
    paths: list[Indices]
    """For each member, the index in the tree of each token [T]."""
    ids: Ids
    positions: Ids
    segment_of: Indices
    parents: Indices


def _find_adapter(samples: Sequence[Sample], tree: _SampleTree) -> str | None:
    return samples[tree.members[0]].timeline.adapter


def _iterate_families(samples: Sequence[Sample], budget: int, share: bool) -> Iterator[list[int]]:
    """Yield lists of sample indexes, each of which is packed as one tree.

    Args:
        share: False: each sample is a tree of its own.
    """
    families = sorted(
        _iterate_group_families(samples, budget, share),
        key=lambda family: (samples[family[0]].timeline.adapter or "", samples[family[0]].timeline.ids.tobytes()),
    )
    if not share:
        yield from families
        return
    tree: list[int] = []
    size = 0
    for family in families:
        family_size = _count_tree_tokens(samples, family)
        joined = _join_families(samples, tree, family, size, family_size, budget) if tree else None
        if joined is None:
            if tree:
                yield tree
            tree, size = family, family_size
        else:
            tree, size = joined
    if tree:
        yield tree


def _join_families(
    samples: Sequence[Sample], tree: list[int], family: list[int], size: int, own: int, budget: int
) -> tuple[list[int], int] | None:
    """Return a tree joined with a family (samples with a common prefix), and the joined number of tokens.

    Args:
        tree: Indexes of the tree's samples, sorted by tokens.
        family: Indexes of the family's samples, sorted by tokens.
        size: Tokens of the tree.
        own: Tokens of the family.

    Returns:
        None if two trees cost less, or if they share no prefix.
    """
    first_timeline, last_timeline, family_timeline = (
        samples[index].timeline for index in (tree[0], tree[-1], family[0])
    )
    shared = (
        count_shared(first_timeline.ids, family_timeline.ids)
        if first_timeline.adapter == family_timeline.adapter
        else 0
    )
    if not shared:
        return None
    members = tree + family
    if (
        last_timeline.ids.tobytes() <= family_timeline.ids.tobytes()
    ):  # the usual order: only the two neighbours share a prefix
        joined_tokens = size + own - count_shared(last_timeline.ids, family_timeline.ids)
    else:
        members = _sort_by_tokens(samples, members)
        joined_tokens = _count_tree_tokens(samples, members)
    # The shared tokens' linear layers must save more than the pairs of tokens of both trees cost in one dense mask.
    saves_time = joined_tokens <= SMALL and shared * PAIRS >= size * own
    return (members, joined_tokens) if joined_tokens <= budget and (saves_time or shared >= LONG) else None


def _sort_by_tokens(samples: Sequence[Sample], members: list[int]) -> list[int]:
    """Return the members sorted by their tokens: members with a common prefix become neighbours."""
    return sorted(members, key=lambda index: samples[index].timeline.ids.tobytes())


def _count_tree_tokens(samples: Sequence[Sample], members: Sequence[int]) -> int:
    """Return the number of tokens of a tree of sorted members."""
    ids = [samples[index].timeline.ids for index in members]
    return sum(sample_ids.size for sample_ids in ids) - sum(
        count_shared(left, right) for left, right in zip(ids, ids[1:], strict=False)
    )


def _iterate_group_families(samples: Sequence[Sample], budget: int, share: bool) -> Iterator[list[int]]:
    """Yield families: indices of samples of one group that share a prefix and together fit the token budget."""
    groups: dict[tuple[int, str | None], list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.timeline.ids.size:
            groups.setdefault((sample.group, sample.timeline.adapter), []).append(index)
    for members in groups.values():
        ordered = _sort_by_tokens(samples, members)
        ids = [samples[index].timeline.ids for index in ordered]
        shared = [0, *(count_shared(left, right) if share else 0 for left, right in zip(ids, ids[1:], strict=False))]
        # A family ends where two neighbours share no token.
        family_starts = [*(position for position, size in enumerate(shared) if not size), len(ordered)]
        for start, stop in zip(family_starts, family_starts[1:], strict=False):
            sizes = [sample_ids.size for sample_ids in ids[start:stop]]
            edges = [start + cut for cut in _cut_family(sizes, shared[start:stop], budget)]
            yield from (ordered[left:right] for left, right in zip(edges, edges[1:], strict=False))


def _cut_family(sizes: Sequence[int], shared: Sequence[int], budget: int) -> list[int]:
    """Cut a family into parts of at most `budget` tokens, so that repeated prefixes cost least (dynamic programming).

    Args:
        sizes: Tokens of each sample. A sample longer than the budget is a part of its own.
        shared: Tokens that each sample has in common with the one before.

    Returns:
        The index of each part's first sample, then the number of samples.
    """
    if sum(sizes) - sum(shared) <= budget:
        return [0, len(sizes)]
    # For the first `stop` samples: the least cost, and the first sample of the last part at this cost.
    least_cost, part_start = [0.0], [0]
    for stop in range(1, len(sizes) + 1):
        best, tokens = (math.inf, 0), 0
        for start in range(stop - 1, -1, -1):
            tokens += sizes[start] - (shared[start + 1] if start + 1 < stop else 0)
            if tokens > budget and start + 1 < stop:
                break
            # The cost of computing the shared prefix again: linear layers per token, and attention per pair of tokens.
            repeated = shared[start] * (1 + shared[start] / (2 * PAIRS))
            if least_cost[start] + repeated < best[0]:
                best = (least_cost[start] + repeated, start)
        least_cost.append(best[0])
        part_start.append(best[1])
    edges = [len(sizes)]
    while edges[-1]:
        edges.append(part_start[edges[-1]])
    return edges[::-1]


def count_shared(left: Ids, right: Ids) -> int:
    """Return the number of leading tokens shared by both arrays."""
    size = min(left.size, right.size)
    differ = left[:size] != right[:size]
    first_difference = int(differ.argmax()) if size else 0
    return first_difference if size and differ[first_difference] else size


def _build_tree(samples: Sequence[Sample], members: list[int]) -> _SampleTree:
    """Build the tree of samples with common prefixes, in which each shared token is stored once.

    Args:
        members: Indexes of the samples, sorted by their tokens.
    """
    paths: list[Indices] = []
    pieces: list[Ids] = []
    predecessors: list[Indices] = []
    size = 0
    for position, index in enumerate(members):
        ids = samples[index].timeline.ids
        shared = count_shared(samples[members[position - 1]].timeline.ids, ids) if position else 0
        new_indices = np.arange(size, size + ids.size - shared, dtype=np.int64)
        path = np.concatenate([paths[-1][:shared], new_indices]) if position else new_indices
        paths.append(path)
        pieces.append(ids[shared:])
        predecessors.append(np.concatenate([[-1], path])[shared : ids.size])
        size += new_indices.size
    previous = np.concatenate(predecessors).astype(np.int64)
    follower_counts = np.bincount(previous + 1, minlength=size + 1)
    # A segment starts at the root, and at each token that follows a token with several followers.
    starts_segment = (previous < 0) | (follower_counts[previous + 1] > 1)
    segment_of = np.cumsum(starts_segment) - 1
    segment_predecessors = previous[starts_segment]
    parents = np.where(segment_predecessors < 0, -1, segment_of[np.maximum(segment_predecessors, 0)])
    positions = np.empty(size, np.int32)
    for path in paths:
        positions[path] = np.arange(path.size, dtype=np.int32)
    ids = np.concatenate(pieces).astype(np.int32, copy=False)
    return _SampleTree(members, paths, ids, positions, segment_of, parents)


def _build_row(samples: Sequence[Sample], grown: Sequence[_SampleTree]) -> PackedRow:
    """Build the row of several trees, one after the other, with the targets of all their samples."""
    trees: list[Tree] = []
    targets: list[tuple[Indices, Indices, Indices, Indices]] = []
    start = 0
    for tree in grown:
        stop = start + tree.ids.size
        trees.append(Tree(start, stop, tree.segment_of, tree.parents))
        for index, path in zip(tree.members, tree.paths, strict=True):
            timeline = samples[index].timeline
            offset = np.flatnonzero(samples[index].targets)
            token = timeline.ids[offset].astype(np.int64)
            # A token is predicted at the token before it on the sample's path.
            targets.append((path[offset - 1] + start, token, np.full(offset.size, index, np.int64), offset))
        start = stop
    columns = [np.concatenate([target_columns[column] for target_columns in targets]) for column in range(4)]
    order = np.lexsort((columns[2], columns[0]))
    return PackedRow(
        np.concatenate([tree.ids for tree in grown]),
        np.concatenate([tree.positions for tree in grown]),
        trees,
        Targets(*(column[order] for column in columns)),
        _find_adapter(samples, grown[0]),
    )
