"""Places each row in a batch that verl divides into ranks, and each rank's part into mini-batches.

verl divides by count: equal numbers of rows per rank, and equal numbers per optimizer step. Invariants: each part of
the plan is one optimizer step, with all of its rows, and every rank has rows for it. Padding rows, without training
effect, fill up to equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

TREES = "ajet_trees"
"""Key of ajet under verl's `actor_rollout_ref`: engines compute shared prefixes of rows once."""
ATTENTION = 24576
"""Length at which attention costs as much as the rest of a layer.

Six times the width of a model with seven billion parameters, the size at which even work begins to matter.
"""


def deal_rows(
    parts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    *,
    ranks: int,
    multiple: int = 1,
    kin: Sequence[str] | None = None,
) -> list[int | None]:
    """Return row indices in batch order: by rank, and within a rank by part; None is padding.

    Args:
        parts: the rows of each optimizer step.
        lengths: tokens per row; ranks get about equal work.
        multiple: each rank's rows of a part are a multiple of this number (verl's fixed micro-batches).
        kin: per row, a key of the rows sharing tokens, for engines computing shared tokens once. Such rows go to one
            rank if the division stays fair, at any cost in padding.
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
    """Assign the longest row first, to the rank with the least work and free room."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for row in sorted(part, key=lambda row: (-lengths[row], row)):
        rank = min((rank for rank in range(ranks) if len(hands[rank]) < size), key=lambda rank: (work[rank], rank))
        hands[rank].append(row)
        work[rank] += lengths[row] + lengths[row] ** 2 / ATTENTION
    return [sorted(hand) for hand in hands]


def _group_kin(part: Sequence[int], lengths: Sequence[int], ranks: int, kin: Sequence[str]) -> list[list[int]]:
    """Order rows by kin, and cut where the ranks' tokens are about equal."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    rows = sorted(part, key=lambda row: (kin[row], row))
    total, done = sum(lengths[row] for row in rows), 0
    for row in rows:
        hands[min(ranks - 1, (2 * done + lengths[row]) * ranks // (2 * total))].append(row)
        done += lengths[row]
    return hands


def _pad_hand(hand: list[int], size: int) -> list[int | None]:
    return [*hand, *[None] * (size - len(hand))]
