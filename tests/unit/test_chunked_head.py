"""A head that is read in chunks is afterwards as it was."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_what_stood_in_for_a_heads_forward_does_so_again_even_after_an_error() -> None:
    from ajet.backbone.verl.trainer.chunked_head import read_in_chunks

    head, states, targets = torch.nn.Linear(4, 6, bias=False), torch.randn(1, 5, 4), torch.arange(5)
    plain = head.forward

    def doubled(given: Any) -> Any:
        return 2 * plain(given)

    head.forward = doubled
    wanted = head(states)[0].gather(1, targets[:, None])
    with pytest.raises(KeyError), read_in_chunks(head, targets, 2, lambda logits, of: logits.gather(1, of[:, None])):
        torch.testing.assert_close(head(states)[0], wanted)
        raise KeyError
    assert head.forward is doubled
    del head.forward
    with read_in_chunks(head, targets, 2, lambda logits, of: logits.gather(1, of[:, None])):
        torch.testing.assert_close(2 * head(states)[0], wanted)
    assert "forward" not in vars(head)
