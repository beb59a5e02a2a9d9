"""A model that was held against its eager pass on this machine is not asked again; whatever could change that asks."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from ajet.backbone.local import packed_forward, tree_attention
from ajet.backbone.local.packed_forward import PackedForward
from ajet.engine.transformers import TransformersEngine
from ajet.engine.transformers import engine as engine_module
from ajet.engine.verdict_cache import VerdictCache, build_verdict_key
from ajet.schema.errors import UserError
from tests.support.local_fixtures import tiny_llama

pytestmark = pytest.mark.slow


def counted(monkeypatch, module, name):
    """How often `name` was called."""
    called, own = [], getattr(module, name)

    def counting(*given):
        called.append(name)
        return own(*given)

    monkeypatch.setattr(module, name, counting)
    return called


def test_trainer_and_engine_ask_once(monkeypatch, tmp_path):
    asked = (
        counted(monkeypatch, packed_forward, "probe_packing"),
        counted(monkeypatch, engine_module, "require_eager_agreement"),
    )
    for times in (1, 1):
        model = tiny_llama()
        assert PackedForward(model, verdicts=VerdictCache(tmp_path)).packed
        assert model.config._attn_implementation == tree_attention.NAME
        TransformersEngine(model, verdicts=VerdictCache(tmp_path)).close()
        assert [len(each) for each in asked] == [times, times]
    PackedForward(tiny_llama())
    assert len(asked[0]) == 2, "who keeps nothing asks each time"


def test_what_disagreed_is_asked_again(monkeypatch, tmp_path):
    each_alone = 102  # tokens of the probe's samples: its head agrees, its packed rows do not
    monkeypatch.setattr(packed_forward, "logits_match", lambda found, wanted, dtype: found.shape[0] == each_alone)
    asked = counted(monkeypatch, packed_forward, "probe_packing")
    for times in (1, 2):
        assert not PackedForward(tiny_llama(), verdicts=VerdictCache(tmp_path)).packed
        assert len(asked) == times and not list(tmp_path.iterdir())

    def refused(*_):
        raise UserError("no")

    monkeypatch.setattr(engine_module, "require_eager_agreement", refused)
    with pytest.raises(UserError):
        TransformersEngine(tiny_llama(), verdicts=VerdictCache(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_a_trial_and_nothing_else(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    asked = counted(monkeypatch, packed_forward, "probe_packing")
    for times in (1, 2):
        assert PackedForward(tiny_llama(), verdicts=VerdictCache(tmp_path / "file" / "agreed")).packed
        assert len(asked) == times


def test_a_model_whose_code_lies_in_no_file_is_tried_each_time(monkeypatch, tmp_path):
    made = tiny_llama()
    made.__class__ = type("Made", (type(made),), {"__module__": "__main__"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    asked = counted(monkeypatch, packed_forward, "probe_packing")
    assert build_verdict_key(made, code=[]) == ""
    for times in (1, 2):
        assert PackedForward(made, verdicts=VerdictCache(tmp_path)).packed
        assert len(asked) == times and not list(tmp_path.iterdir())


def test_a_key_is_of_the_file_beside_the_model_and_of_what_chooses_kernels(monkeypatch, tmp_path):
    (tmp_path / "modeling_of_ones_own.py").write_text("import torch\nclass Norm(torch.nn.Module):\n    pass\n")
    (tmp_path / "beside.py").write_text("own = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    model = tiny_llama()
    model.beside = importlib.import_module("modeling_of_ones_own").Norm()
    keys = [build_verdict_key(model, code=[])]
    (tmp_path / "beside.py").write_text("own = 2\n")
    keys.append(build_verdict_key(model, code=[]))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    keys.append(build_verdict_key(model, code=[]))
    assert len(set(keys)) == len(keys)


def test_a_key_is_of_modules_configuration_format_and_code(tmp_path):
    (tmp_path / "attention.py").write_text("one = 1\n")
    wider = tiny_llama()
    wider.config.rms_norm_eps = 0.5
    keys = [
        build_verdict_key(tiny_llama(), code=[]),
        build_verdict_key(tiny_llama().to(torch.bfloat16), code=[]),
        build_verdict_key(wider, code=[]),
    ]
    keys.append(build_verdict_key(tiny_llama(), code=[tmp_path]))
    (tmp_path / "attention.py").write_text("one = 2\n")
    keys.append(build_verdict_key(tiny_llama(), code=[tmp_path]))
    assert len(set(keys)) == len(keys)
    assert build_verdict_key(tiny_llama(), code=[tmp_path]) == keys[-1]
