"""`ajet deploy --engine vllm`: real vLLM serves several adapters, and says what the transformers engine says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contract.test_adapters_run import project, served, trained
from tests.vllm_fixtures import skip_without_vllm

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


def test_vllm_serves_each_adapter_as_it_was_trained(tmp_path, monkeypatch):
    skip_without_vllm()
    project(tmp_path)
    done, run = trained(tmp_path, "run", "trainer_common.total_training_steps=2", "trainer_common.test_freq=2")
    assert done.returncode == 0, done.stdout
    inside, outside = (served(run, engine, monkeypatch) for engine in ("transformers", "vllm"))
    for name, logprobs in inside.items():
        np.testing.assert_allclose(outside[name], logprobs, atol=1e-3)
    assert len({tuple(each) for each in outside.values()}) == 3, "three policies"
