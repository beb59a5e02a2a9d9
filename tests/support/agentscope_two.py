"""What the tests that are played in the environment of AgentScope 2 share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ajet.backbone.requirements import find_installed_version

needs_agentscope_two = pytest.mark.skipif(
    not find_installed_version("agentscope").startswith("2."), reason="it is played in the environment of AgentScope 2"
)


def allow(function: Callable[..., Any]) -> Any:
    """Return a tool of AgentScope 2 that runs without a confirmation."""
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool

    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="a tool of the test")
    return FunctionTool(function, permission=allowed)
