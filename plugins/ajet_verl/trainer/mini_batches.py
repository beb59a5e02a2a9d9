"""Where each row lies in a batch that verl cuts into ranks, and each rank's part into mini batches.

verl cuts by counting: equal numbers of rows for each rank, and of those equal numbers for each optimizer step.
Invariant: each part of the plan is one optimizer step, none of its rows is left out, and no rank lacks one; what is
missing for equal numbers is padding, which trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

TREES = "ajet_trees"
"""The key of ours under verl's `actor_rollout_ref`: engines that compute what rows share once."""
ATTENTION = 24576
"""At this length attention costs as much as the rest of a layer: six times the width of a model of seven billion
parameters, the size at which dealing evenly begins to matter."""


def deal_rows(
    parts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    ranks: int,
    multiple: int = 1,
    kin: Sequence[str] | None = None,
) -> list[int | None]:
    """Indices of rows in the order of the batch: rank by rank, and of each rank part by part; None is padding.

    parts: the rows of each optimizer step. lengths: [row] tokens; the ranks get about the same work. multiple: each
    rank's rows of a part are a multiple of it (verl's fixed micro batches). kin: [row] whom a row shares tokens with,
    where those are computed once: such rows go to one rank, if that is fair, whatever padding it takes.
    """
    size = max((-(-len(part) // ranks) for part in parts), default=0)
    if kin is None:
        size = -(-size // multiple) * multiple
        dealt = [_balance_part(part, lengths, ranks, size) for part in parts]
    else:
        dealt = [_group_kin(part, lengths, ranks, kin) for part in parts]
        size = max((len(hand) for hands in dealt for hand in hands), default=0)
        size = -(-size // multiple) * multiple
    return [row for rank in range(ranks) for part in dealt for row in _pad_hand(part[rank], size)]


def _balance_part(part: Sequence[int], lengths: Sequence[int], ranks: int, size: int) -> list[list[int]]:
    """The longest row first, to the rank with the least work that has room."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for row in sorted(part, key=lambda row: (-lengths[row], row)):
        rank = min((rank for rank in range(ranks) if len(hands[rank]) < size), key=lambda rank: (work[rank], rank))
        hands[rank].append(row)
        work[rank] += lengths[row] + lengths[row] ** 2 / ATTENTION
    return [sorted(hand) for hand in hands]


def _group_kin(part: Sequence[int], lengths: Sequence[int], ranks: int, kin: Sequence[str]) -> list[list[int]]:
    """Kin beside each other, cut where the ranks' tokens are about equal."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    rows = sorted(part, key=lambda row: (kin[row], row))
    total, done = sum(lengths[row] for row in rows), 0
    for row in rows:
        hands[min(ranks - 1, (2 * done + lengths[row]) * ranks // (2 * total))].append(row)
        done += lengths[row]
    return hands


def _pad_hand(hand: list[int], size: int) -> list[int | None]:
    return [*hand, *[None] * (size - len(hand))]
