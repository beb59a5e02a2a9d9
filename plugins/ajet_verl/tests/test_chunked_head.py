"""A head that is read in chunks gives what it would give as a whole, and is afterwards as it was."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_what_stood_in_for_a_heads_forward_does_so_again_even_after_an_error() -> None:
    from ajet_verl.trainer.chunked_head import read_in_chunks

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


class Model(torch.nn.Module):
    """One layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lm_head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 6, bias=False)

    def forward(self, states: Any) -> Any:
        return self.lm_head(self.layer(states))


def chosen(logits: Any, targets: Any) -> Any:
    """[C, 2] what is read of each row."""
    table = torch.log_softmax(logits, -1)
    return torch.stack([table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)], -1)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["lm_head"]},
        {"target_modules": ["lm_head"], "use_dora": True},
        {"target_modules": ["layer"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["lm_head"], "lora_dropout": 0.5},
    ],
    ids=["adapter", "dora", "saved", "dropout"],
)
def test_a_head_with_an_adapter_gives_what_it_gives_as_a_whole(settings: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    from ajet_verl.trainer.chunked_head import read_in_chunks

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, init_lora_weights=False, **settings)
    model = peft.get_peft_model(Model(), config).double().train()
    states, targets = torch.randn(1, 7, 4, dtype=torch.float64), torch.arange(7) % 6
    weights = torch.arange(14, dtype=torch.float64).view(7, 2)

    def result(chunks: bool) -> list[Any]:
        model.zero_grad()
        given = states.clone().requires_grad_()
        torch.manual_seed(1)
        if chunks:
            with read_in_chunks(model.base_model.model.lm_head, targets, 3, chosen):
                read = model(given)[0]
        else:  # a third of the rows at a time, so that dropout draws alike, and nothing computed again
            hidden, head = model.base_model.model.layer(given)[0], model.base_model.model.lm_head
            pairs = zip(hidden.split(3), targets.split(3), strict=True)
            read = torch.cat([chosen(head(part), of) for part, of in pairs])
        (read * weights).sum().backward()
        own = [p.grad for _, p in sorted(model.named_parameters()) if p.requires_grad]
        return [read.detach(), given.grad, *own]

    for have, want in zip(result(True), result(False), strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=1e-12)
    if not config.lora_dropout:
        model.zero_grad()
        torch.testing.assert_close(chosen(model(states)[0], targets), result(True)[0], rtol=0, atol=1e-12)


def test_a_head_that_ranks_gather_by_itself_is_known() -> None:
    from torch import distributed as dist

    from ajet_verl.trainer.chunked_head import is_gathered_alone

    peft = pytest.importorskip("peft")
    assert not is_gathered_alone(None) and not is_gathered_alone(torch.nn.Linear(4, 6))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        adapted = peft.get_peft_model(Model(), peft.LoraConfig(r=2, target_modules=["lm_head"]))
        head = adapted.base_model.model.lm_head
        assert not is_gathered_alone(head)
        cpu = torch.device("cpu")
        head.lora_A["default"] = torch.distributed.fsdp.FullyShardedDataParallel(head.lora_A["default"], device_id=cpu)
        assert is_gathered_alone(head), "as verl's wrap policy for LoRA leaves it"
        mesh = dist.init_device_mesh("cpu", (1,))
        plain = torch.nn.Linear(4, 6)
        torch.distributed.fsdp.fully_shard(plain, mesh=mesh)
        assert is_gathered_alone(plain)
    finally:
        dist.destroy_process_group()
