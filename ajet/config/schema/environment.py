"""`environment`: the tools and worlds that agents act in."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import SERVE, Section, key, section
from ajet.config.schema.reasons import OWN_AGENTS


class SandboxLimits(Section):
    """What one call in a sandbox may use; it is ended beyond that, and says why."""

    wall: float = key(30.0, "Seconds by the clock.", gt=0)
    cpu: int = key(30, "Processor seconds of each process.", ge=1)
    memory: int = key(512, "MiB of all its processes together, and of each one's addresses.", ge=64)
    processes: int = key(64, "Processes and threads at once.", ge=4)
    files: int = key(256, "Open files of each process.", ge=16)
    disk: int = key(256, "MiB in its working folder, and as many in /tmp.", ge=1)
    output: int = key(1 << 20, "Bytes of standard output and error together.", ge=1024)


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
    sandbox: Literal["auto", "bubblewrap", "landlock", "podman", "docker", "none"] = key(
        "auto",
        "What `tuner.sandbox()` runs code in. auto: the first of bubblewrap, landlock, podman and docker (a "
        "container for each episode) that works here; none: as this user, with limits and nothing else, which is said "
        "at each start and kept with each episode.",
        training=False,
    )
    sandbox_limits: SandboxLimits = section(
        SandboxLimits,
        "What one call in a sandbox may use. `rollout.isolation: sandbox` holds a whole attempt to its `memory`, "
        "`processes`, `files` and `disk`.",
    )
    sandbox_python: str | None = key(
        None,
        "A Python whose packages code in a sandbox can import, `tools/.venv/bin/python` for one; null: ajet's own "
        "Python with its standard library alone.",
        kind="path",
    )
    sandbox_root: str | None = key(
        None,
        "A folder that code in a sandbox sees as / (an unpacked image, with a Python 3.10 or later at "
        "/usr/bin/python3); null: this machine's programs, read-only. Needs bubblewrap.",
        kind="path",
    )
    sandbox_image: str | None = key(
        None,
        "The image of an engine's containers, with a `python3`, 3.10 or later; nothing is pulled; null: "
        "docker.io/library/python:3.12-slim. Needs podman or docker.",
    )
