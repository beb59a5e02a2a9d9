"""Orders the rows of a batch so that verl's division into ranks and mini-batches gives the planned optimizer steps.

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
    """Assign rows to ranks and optimizer steps, and return the row indices in the order of the batch.

    The order is by rank, and within a rank by optimizer step. None stands for a padding row.

    Args:
        parts: the rows of each optimizer step, as indices.
        lengths: number of tokens of each row of the batch; ranks get about equal work.
        ranks: number of data-parallel ranks.
        multiple: the number of a rank's rows in an optimizer step is a multiple of this (verl's fixed micro-batches).
        kin: for each row, a key that rows with a common prefix share, for engines that compute shared tokens once.
            Such rows go to one rank if the ranks' tokens stay about equal, even if this needs more padding.
    """
    size = max((-(-len(part) // ranks) for part in parts), default=0)
    if kin is None:
        size = -(-size // multiple) * multiple
        rows_by_part_and_rank = [_balance_part(part, lengths, ranks, size) for part in parts]
    else:
        rows_by_part_and_rank = [_group_kin(part, lengths, ranks, kin) for part in parts]
        size = max((len(rank_rows) for part_rows in rows_by_part_and_rank for rank_rows in part_rows), default=0)
        size = -(-size // multiple) * multiple
    return [row for rank in range(ranks) for part in rows_by_part_and_rank for row in _pad_hand(part[rank], size)]


def _balance_part(part: Sequence[int], lengths: Sequence[int], ranks: int, size: int) -> list[list[int]]:
    """Divide an optimizer step's rows over the ranks: longest row first, to the rank with the least work.

    Args:
        size: maximum number of rows per rank.

    Returns:
        The row indices of each rank.
    """
    rows_by_rank: list[list[int]] = [[] for _ in range(ranks)]
    work_by_rank = [0.0] * ranks
    for row in sorted(part, key=lambda row: (-lengths[row], row)):
        rank = min(
            (rank for rank in range(ranks) if len(rows_by_rank[rank]) < size),
            key=lambda rank: (work_by_rank[rank], rank),
        )
        rows_by_rank[rank].append(row)
        # Attention grows with the square of the length, everything else linearly.
        work_by_rank[rank] += lengths[row] + lengths[row] ** 2 / ATTENTION
    return [sorted(rank_rows) for rank_rows in rows_by_rank]


def _group_kin(part: Sequence[int], lengths: Sequence[int], ranks: int, kin: Sequence[str]) -> list[list[int]]:
    """Divide an optimizer step's rows over the ranks, with rows of one `kin` next to each other.

    The sorted rows are cut where the ranks' tokens are about equal.

    Returns:
        The row indices of each rank.
    """
    rows_by_rank: list[list[int]] = [[] for _ in range(ranks)]
    rows = sorted(part, key=lambda row: (kin[row], row))
    total_tokens, tokens_before = sum(lengths[row] for row in rows), 0
    for row in rows:
        # A row goes to the rank in whose equal share of the tokens its middle lies.
        rows_by_rank[min(ranks - 1, (2 * tokens_before + lengths[row]) * ranks // (2 * total_tokens))].append(row)
        tokens_before += lengths[row]
    return rows_by_rank


def _pad_hand(hand: list[int], size: int) -> list[int | None]:
    """Append None, which stands for a padding row, until a rank has `size` rows."""
    return [*hand, *[None] * (size - len(hand))]
