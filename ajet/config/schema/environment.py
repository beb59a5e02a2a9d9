"""`environment`: the tools and worlds that agents act in."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import SERVE, Section, key
from ajet.config.schema.reasons import OWN_AGENTS


class Environment(Section):
    """What agents act in, beside what their own code opens."""

    use: str | None = key(
        None,
        "Tools: an MCP address (`http://HOST:PORT/mcp`, or `…/sse`), AgentDock's (`…/mcpapi`), the name of an "
        "environment that runs here (`ajet env up`), a command that speaks MCP over its pipes (`{python}` is this "
        "Python), or a file with `mcpServers`, as AWorld and Claude write it. Or a world, of which "
        "each attempt gets an instance (`workflow_task.gym_env`), created with the task's id: `http://HOST:PORT` of an "
        "environment service, `openenv:ws://HOST:PORT`, `nemo_gym:http://HOST:PORT`, `gymnasium:ID`, `textarena:ID`, "
        "or a class of your own (env.py->MyEnv).",
        idle={SERVE: OWN_AGENTS},
    )
    agent_config: str | None = key(
        None,
        "A file as AgentRL's `agent_config.yml`: the models of the browse agent and what they condense "
        "(`rollout.mcp_agent.browse`); null: the model of BROWSE_LLM_BASE_URL, BROWSE_LLM_MODEL_NAME and "
        "BROWSE_LLM_API_KEY in the environment.",
        kind="path",
        idle={SERVE: OWN_AGENTS},
    )
    replay: str | None = key(
        None,
        "A recorded run, by name or folder, whose tool uses answer in place of the tools; null asks the tools.",
        kind="path",
        idle={SERVE: OWN_AGENTS},
    )
    replay_miss: Literal["error", "live"] = key(
        "error",
        "What becomes of a use that `replay` does not have: error ends the episode as a failure of the environment, "
        "live asks the tool.",
        idle={SERVE: OWN_AGENTS},
    )
    sandbox: str = key(
        "auto",
        "What `tuner.sandbox()` runs code in. auto: the first of bubblewrap, landlock, podman and docker (a "
        "container for each episode) that works here; none: as this user, with limits and nothing else, which is said "
        "at each start and kept with each episode; or a reference to a class of your own.",
        training=False,
        part="sandbox",
    )
