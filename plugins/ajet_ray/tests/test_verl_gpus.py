"""What a machine's GPUs are, asked of a stand-in for nvidia-smi that prints what the real one does."""

import os

import pytest

from ajet.schema.errors import UserError
from ajet_ray.cluster.gpus import Gpu, list_gpus, refuse_busy

pytestmark = pytest.mark.verl


@pytest.fixture
def smi(tmp_path, monkeypatch):
    def answers(text: str) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return answers


def test_memory_is_read_in_bytes(smi):
    smi("81559, 4, 9.0, NVIDIA H100 PCIe\n81559, 60000, 8.6, NVIDIA A100")
    assert list_gpus() == [
        Gpu(81559 * 2**20, 4 * 2**20, 9, "NVIDIA H100 PCIe"),
        Gpu(81559 * 2**20, 60000 * 2**20, 8, "NVIDIA A100"),
    ]


def test_free_ones_are_enough_or_the_busy_ones_are_named(smi):
    smi("81559, 4, 9.0, NVIDIA H100\n81559, 60000, 9.0, NVIDIA H100\n81559, 4, 9.0, NVIDIA H100")
    refuse_busy(2)
    with pytest.raises(UserError, match=r"needs 3 GPUs, but of 3 GPUs other processes use 1: 1 \(59 GiB\)") as caught:
        refuse_busy(3)
    assert "--skip-check-avail-gpu" in caught.value.do


@pytest.mark.parametrize("text", ["", "No devices were found", "[N/A], [N/A], [N/A], [N/A]"])
def test_a_machine_that_does_not_tell_has_none(smi, text):
    smi(text)
    assert list_gpus() == []
    refuse_busy(8)
