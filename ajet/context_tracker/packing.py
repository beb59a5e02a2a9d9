"""Samples to rows of tokens: shared prefixes once, no padding.

Invariant: along the path of every sample a row holds exactly that sample's tokens at positions 0, 1, 2 …; every
mask-1 token of every sample is a target exactly once; within a tree no token is stored twice. Each `Sample` lies in
one tree, so a forward pass under the tree's mask computes what a pass over the sample alone would.

Samples of one group and one adapter that begin alike form a tree, and all of a row are of one adapter. Groups that
begin alike (one system prompt, the same worked examples) join in a tree where that saves more than it costs: what is
shared is computed once, and in a small tree every token is held to every other. Rows are filled up to `budget` tokens.
A group's tree that would outgrow the budget is built as several, each repeating what it shares, and cut where that
costs least; only a single sample that is longer than the budget makes a longer row, which it then has to itself.
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
"""Tokens up to which a tree's attention is one call under a dense mask; a larger one goes segment by segment."""
LONG = 256
"""Tokens that groups must share for a tree of theirs to grow beyond that."""
PAIRS = 1500
"""Pairs of tokens whose attention takes as long as one token's linear layers, where a model is 500 wide; in a wider one
they take less."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows [start, stop) of a packed row: sequences that share prefixes. Shapes: n = stop - start tokens, S segments.

    A segment is a run of tokens without a branch. In preorder: what continues a segment, and what continues that,
    follows it without a gap."""

    start: int
    stop: int
    segment_of: Indices
    """[n] the segment of each token."""
    parents: Indices
    """[S] the segment that each segment continues; -1 for the one at the root."""


@dataclass(frozen=True, slots=True)
class Targets:
    """[K] what the row is trained on, ordered by source."""

    source: Indices
    """Index into the row of the token whose logits predict the target."""
    token: Indices
    """The id to predict."""
    sample: Indices
    """Index into the samples given to `pack`."""
    offset: Indices
    """Index of the target within its sample's timeline."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One forward pass. Shapes: N tokens.

    Token i attends to token j iff both are in the same tree, j <= i, and j's segment is i's or an ancestor of it."""

    ids: Ids
    """[N]"""
    positions: Ids
    """[N] the index of each token within its sample."""
    trees: list[Tree]
    targets: Targets
    adapter: str | None = None
    """Of all its samples."""


def pack(samples: Sequence[Sample], budget: int, *, share_prefixes: bool = True) -> list[PackedRow]:
    """Rows of at most `budget` tokens, but for samples that are longer themselves. Deterministic.

    Raises ValueError for a timeline whose first token has mask 1: nothing predicts it."""
    for index, sample in enumerate(samples):
        if sample.timeline.mask.size and sample.timeline.mask[0]:
            raise ValueError(f"sample {index} of episode {sample.episode}: its first token cannot be a target")
    trees = [_grow(samples, members) for members in _families(samples, budget, share_prefixes)]
    trees.sort(key=lambda tree: (-tree.ids.size, tree.members[0]))
    rows: list[list[_Grown]] = []
    room: list[int] = []
    for tree in trees:
        size, adapter = tree.ids.size, _adapter(samples, tree)
        fits = (index for index, left in enumerate(room) if left >= size)
        row = next((index for index in fits if _adapter(samples, rows[index][0]) == adapter), None)
        if row is None:
            rows.append([])
            room.append(budget)
            row = len(rows) - 1
        rows[row].append(tree)
        room[row] -= size
    return [_join(samples, row) for row in rows]


def placed(samples: Sequence[Sample], rows: Sequence[PackedRow], values: Sequence[Floats]) -> list[Floats]:
    """[T] per sample: what `values` [K] say of each row's targets, 0 elsewhere."""
    found = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    for row, numbers in zip(rows, values, strict=True):
        for index in np.unique(row.targets.sample).tolist():
            mine = row.targets.sample == index
            found[index][row.targets.offset[mine]] = numbers[mine]
    return found


def tree_mask(tree: Tree) -> npt.NDArray[np.bool_]:
    """[n, n] True where the token of the row index attends to the token of the column index."""
    count = tree.parents.size
    ancestor = np.eye(count, dtype=np.bool_)
    for segment, parent in enumerate(tree.parents):
        if parent >= 0:
            ancestor[segment] |= ancestor[parent]
    seen = ancestor[tree.segment_of[:, None], tree.segment_of[None, :]]
    return np.tril(seen)


@dataclass(frozen=True, slots=True)
class _Grown:
    """A tree before it has its place in a row."""

    members: list[int]
    paths: list[Indices]
    """Per member [T]: the tree's index of each of its tokens."""
    ids: Ids
    positions: Ids
    segment_of: Indices
    parents: Indices


def _adapter(samples: Sequence[Sample], tree: _Grown) -> str | None:
    return samples[tree.members[0]].timeline.adapter


def _families(samples: Sequence[Sample], budget: int, share: bool) -> Iterator[list[int]]:
    """Samples that become one tree."""
    families = sorted(
        _of_groups(samples, budget, share),
        key=lambda family: (samples[family[0]].timeline.adapter or "", samples[family[0]].timeline.ids.tobytes()),
    )
    if not share:
        yield from families
        return
    tree: list[int] = []
    size = 0
    for family in families:
        own = _size(samples, family)
        joined = _joined(samples, tree, family, size, own, budget) if tree else None
        if joined is None:
            if tree:
                yield tree
            tree, size = family, own
        else:
            tree, size = joined
    if tree:
        yield tree


def _joined(
    samples: Sequence[Sample], tree: list[int], family: list[int], size: int, own: int, budget: int
) -> tuple[list[int], int] | None:
    """Both in one tree and its tokens; None where they are better apart. `size`, `own`: the tokens of each."""
    one, last, other = (samples[index].timeline for index in (tree[0], tree[-1], family[0]))
    shared = _shared(one.ids, other.ids) if one.adapter == other.adapter else 0
    if not shared:
        return None
    both = tree + family
    if last.ids.tobytes() <= other.ids.tobytes():  # as they mostly lie: only where they meet is something shared
        together = size + own - _shared(last.ids, other.ids)
    else:
        both = _in_order(samples, both)
        together = _size(samples, both)
    pays = together <= SMALL and shared * PAIRS >= size * own
    return (both, together) if together <= budget and (pays or shared >= LONG) else None


def _in_order(samples: Sequence[Sample], members: list[int]) -> list[int]:
    """The members sorted by their tokens, so that those that begin alike are neighbours."""
    return sorted(members, key=lambda index: samples[index].timeline.ids.tobytes())


def _size(samples: Sequence[Sample], members: Sequence[int]) -> int:
    """Tokens of a tree of these, which are in order."""
    ids = [samples[index].timeline.ids for index in members]
    return sum(each.size for each in ids) - sum(_shared(a, b) for a, b in zip(ids, ids[1:], strict=False))


def _of_groups(samples: Sequence[Sample], budget: int, share: bool) -> Iterator[list[int]]:
    """The members of one group each: neighbours in the order of their tokens that share a prefix and fit the budget."""
    groups: dict[tuple[int, str | None], list[int]] = {}
    for index, sample in enumerate(samples):
        if sample.timeline.ids.size:
            groups.setdefault((sample.group, sample.timeline.adapter), []).append(index)
    for members in groups.values():
        ordered = _in_order(samples, members)
        ids = [samples[index].timeline.ids for index in ordered]
        shared = [0, *(_shared(a, b) if share else 0 for a, b in zip(ids, ids[1:], strict=False))]
        opens = [*(at for at, size in enumerate(shared) if not size), len(ordered)]
        for start, stop in zip(opens, opens[1:], strict=False):
            sizes = [each.size for each in ids[start:stop]]
            edges = [start + cut for cut in _cuts(sizes, shared[start:stop], budget)]
            yield from (ordered[a:b] for a, b in zip(edges, edges[1:], strict=False))


def _cuts(sizes: Sequence[int], shared: Sequence[int], budget: int) -> list[int]:
    """The edges of parts of at most `budget` tokens, but for samples that are longer themselves, so that what all but
    the first part repeat costs least. `shared`: what each sample, of `sizes` tokens, has in common with the one
    before."""
    if sum(sizes) - sum(shared) <= budget:
        return [0, len(sizes)]
    least, edge = [0.0], [0]
    for stop in range(1, len(sizes) + 1):
        best, tokens = (math.inf, 0), 0
        for start in range(stop - 1, -1, -1):
            tokens += sizes[start] - (shared[start + 1] if start + 1 < stop else 0)
            if tokens > budget and start + 1 < stop:
                break
            repeated = shared[start] * (1 + shared[start] / (2 * PAIRS))
            if least[start] + repeated < best[0]:
                best = (least[start] + repeated, start)
        least.append(best[0])
        edge.append(best[1])
    edges = [len(sizes)]
    while edges[-1]:
        edges.append(edge[edges[-1]])
    return edges[::-1]


def _shared(left: Ids, right: Ids) -> int:
    size = min(left.size, right.size)
    differ = left[:size] != right[:size]
    first = int(differ.argmax()) if size else 0
    return first if size and differ[first] else size


def _grow(samples: Sequence[Sample], members: list[int]) -> _Grown:
    paths: list[Indices] = []
    pieces: list[Ids] = []
    before: list[Indices] = []
    size = 0
    for number, index in enumerate(members):
        ids = samples[index].timeline.ids
        shared = _shared(samples[members[number - 1]].timeline.ids, ids) if number else 0
        fresh = np.arange(size, size + ids.size - shared, dtype=np.int64)
        path = np.concatenate([paths[-1][:shared], fresh]) if number else fresh
        paths.append(path)
        pieces.append(ids[shared:])
        before.append(np.concatenate([[-1], path])[shared : ids.size])
        size += fresh.size
    previous = np.concatenate(before).astype(np.int64)
    followers = np.bincount(previous + 1, minlength=size + 1)
    opens = (previous < 0) | (followers[previous + 1] > 1)
    segment_of = np.cumsum(opens) - 1
    first = previous[opens]
    parents = np.where(first < 0, -1, segment_of[np.maximum(first, 0)])
    positions = np.empty(size, np.int32)
    for path in paths:
        positions[path] = np.arange(path.size, dtype=np.int32)
    ids = np.concatenate(pieces).astype(np.int32, copy=False)
    return _Grown(members, paths, ids, positions, segment_of, parents)


def _join(samples: Sequence[Sample], grown: Sequence[_Grown]) -> PackedRow:
    trees: list[Tree] = []
    targets: list[tuple[Indices, Indices, Indices, Indices]] = []
    start = 0
    for tree in grown:
        stop = start + tree.ids.size
        trees.append(Tree(start, stop, tree.segment_of, tree.parents))
        for index, path in zip(tree.members, tree.paths, strict=True):
            timeline = samples[index].timeline
            offset = np.flatnonzero(timeline.mask)
            token = timeline.ids[offset].astype(np.int64)
            targets.append((path[offset - 1] + start, token, np.full(offset.size, index, np.int64), offset))
        start = stop
    columns = [np.concatenate([part[column] for part in targets]) for column in range(4)]
    order = np.lexsort((columns[2], columns[0]))
    return PackedRow(
        np.concatenate([tree.ids for tree in grown]),
        np.concatenate([tree.positions for tree in grown]),
        trees,
        Targets(*(column[order] for column in columns)),
        _adapter(samples, grown[0]),
    )
