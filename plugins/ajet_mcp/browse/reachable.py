"""Whether a model of the browse agent is there, for the list of what a run stands on.

Invariant: one that answers will do, for the others stand in for each other; nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ajet.config.services import Service
from ajet.environment.agent_config import KEY
from ajet.environment.chat_model import why_none
from ajet.environment.replay import replays_alone
from ajet_mcp.browse.agent_config import SWITCH, browse_agent_of

if TYPE_CHECKING:
    from ajet.config import Experiment

AGENT = "mcp_agent"


def services_of(experiment: Experiment) -> Iterator[Service]:
    """The models of the browse agent, as one. A workflow of the user's own is not known to have one."""
    if replays_alone(experiment.ajet.environment):
        return
    agent = browse_agent_of(experiment.config) if experiment.ajet.rollout.user_workflow == AGENT else None
    if agent is None:
        return
    first = agent.models[0]
    yield Service(
        "model of the browse agent",
        " or ".join(dict.fromkeys(each.place for each in agent.models)),
        KEY if experiment.ajet.environment.agent_config else SWITCH,
        partial(why_none, agent.models, named="browse agent"),
        f"an OpenAI-compatible server that has {first.model}, or one of the further models",
        "start it (deploy/model/docker-compose.yml serves one), or mend base_url, model and api_key of the file",
    )
