"""What a run's gateway is made with."""

from pathlib import Path

from ajet.config import Experiment
from ajet.gateway.limits import ServerLimits
from ajet.rollout.components import make_gateway_limits


def test_a_gateway_bears_a_connection_of_each_agent_that_begins_before_one_has_shown_its_key() -> None:
    """Of 2,000 that began at once in other processes, 1,454 were taken for strangers and lost their connection."""
    experiment = Experiment.from_dict({"ajet": {"rollout": {"max_env_worker": 5000}}}, base=Path.cwd())
    assert make_gateway_limits(experiment.ajet).strangers == ServerLimits().strangers + 5000
