"""A decoding step's attention over the rows of a pool: right, and each row's bits are its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ajet.engine.transformers import attention
from ajet.engine.transformers.attention import computing, rows_attention
from ajet.engine.transformers.plan import Piece, build_step
from ajet.engine.transformers.pool import Row, RowPool, Shape

HEADS, KEPT, WIDTH = 6, 2, 16
LENGTHS = (1, 17, 600, 33)
"""Keys of each row before its own: of one row blocks of the kernel are masked as a whole, with a window from the
beginning on."""
CPU = torch.device("cpu")


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attended(rows: tuple[int, ...], dtype: torch.dtype, window: int | None) -> tuple[torch.Tensor, RowPool]:
    """[n, H, d] of these rows in one step, and the pool of all with the new keys."""
    pool = RowPool(Shape(1, KEPT, WIDTH, WIDTH, dtype, CPU), 768)
    pool.reserve(len(LENGTHS))
    pool.keys.copy_(normal(*pool.keys.shape, seed=1))
    pool.values.copy_(normal(*pool.values.shape, seed=2))
    pool.tokens[:] = 0
    pieces = [
        Piece(Row(pool, slot, known=LENGTHS[slot] + 1, computed=LENGTHS[slot]), LENGTHS[slot], 1) for slot in rows
    ]
    q, k, v = (
        normal(1, heads, len(LENGTHS), WIDTH, seed=heads)[:, :, list(rows)].to(dtype) for heads in (HEADS, KEPT, KEPT)
    )
    with computing(build_step(pieces, CPU)):
        out, _ = rows_attention(SimpleNamespace(layer_idx=0), q, k, v, None, sliding_window=window)  # type: ignore[arg-type]
    return out[0], pool


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize(("dtype", "tiles"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_next_tokens(monkeypatch, dtype, tiles, window):
    monkeypatch.setattr(attention, "has_matrix_unit", lambda: tiles)
    every = tuple(range(len(LENGTHS)))
    together, pool = attended(every, dtype, window)
    q = normal(1, HEADS, len(LENGTHS), WIDTH, seed=HEADS).to(dtype)[0]
    for slot, length in enumerate(LENGTHS):
        low = 0 if window is None else max(0, length + 1 - window)
        keys, values = (
            kept[0, slot, :, low : length + 1].double().repeat_interleave(HEADS // KEPT, 0)
            for kept in (pool.keys, pool.values)
        )
        weights = torch.softmax((keys @ q[:, slot, :, None].double())[..., 0] * WIDTH**-0.5, -1)
        plain = (weights[:, None] @ values)[:, 0]
        assert torch.allclose(together[slot].double(), plain, atol=1e-6 if dtype == torch.float32 else 2e-2)
    for company in ((0,), (2,), (0, 1), (1, 3)):
        assert torch.equal(attended(company, dtype, window)[0], together[list(company)])
