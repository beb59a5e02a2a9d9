"""How much of a cluster a run asks for, and what it says of one that has less."""

from __future__ import annotations

from typing import Any

import pytest

from ajet.schema.errors import UserError
from ajet_ray.cluster import ray_cluster as cluster
from ajet_ray.cluster.resources import Demand
from ajet_verl.config import compose_verl_config
from ajet_verl.settings import build_needs
from tests.support.verl_fixtures import experiment, without_verl

pytestmark = [pytest.mark.verl, pytest.mark.slow]

SIZES = {"trainer_common.nnodes": 2, "trainer_common.n_gpus_per_node": 4}
APART = {"rollout": {"nnodes": 1, "n_gpus_per_node": 2, "checkpoint_engine": {"backend": "nccl"}}}


def config(mode: str) -> dict[str, Any]:
    ajet = {**SIZES, "trainer_common.mode": mode}
    return compose_verl_config(experiment(ajet, verl={"actor_rollout_ref": APART}), device="cuda")


@without_verl
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_engine_and_trainer_share_their_accelerators(mode):
    demand = Demand.of(config(mode))
    assert (demand.accelerators, demand.nodes, demand.per_node, demand.cpus) == (8, 2, 4, 28)
    assert str(demand) == "2 × 4"


@without_verl
def test_servers_apart_are_counted_too():
    demand = Demand.of(config("separate_async"))
    assert (demand.accelerators, demand.nodes, demand.per_node, demand.cpus) == (10, 3, 4, 32)


@without_verl
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_cpus_slots_are_enough_for_it(ranks):
    ajet = {"trainer_common.mode": "separate_async", "trainer_common.n_gpus_per_node": ranks}
    made = compose_verl_config(experiment({**ajet, "data.train_batch_size": 4}), device="cpu")
    demand, told = Demand.of(made), made["ray_kwargs"]["ray_init"]
    assert demand.accelerators == 2 * ranks == told["num_gpus"] and demand.cpus <= told["num_cpus"]


@without_verl
def test_a_cluster_that_has_the_trainers_alone_is_refused(monkeypatch):
    ray = pytest.importorskip("ray")
    has = {"GPU": 8.0, "CPU": 64.0}
    monkeypatch.setattr(ray, "cluster_resources", lambda: has)
    cluster.wait_for_gpus(build_needs(config("sync")), own=True, on_wait=print)
    with pytest.raises(UserError, match=r"needs 10 GPUs \(2 × 4 to train, 1 × 2 to serve\), but Ray has 8") as caught:
        cluster.wait_for_gpus(build_needs(config("separate_async")), own=True, on_wait=lambda found, wanted: None)
    assert "rollout.nnodes" in caught.value.where
    has["GPU"] = 10.0
    cluster.wait_for_gpus(build_needs(config("separate_async")), own=True, on_wait=print)
    has["CPU"] = 31.0
    with pytest.raises(UserError, match="need 32 of Ray's CPUs, but Ray has 31"):
        cluster.wait_for_gpus(build_needs(config("separate_async")), own=True, on_wait=print)
