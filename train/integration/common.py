"""Tool environment names of AWorld's module of the same name.

Other names of AWorld's own file resolve, too, through `load_hidden`.
"""

import sys
from typing import Any

from ajet_aworld.packages import load_hidden
from ajet_aworld.tool_environment import get_agent_tool_env_and_servers as get_agent_tool_env_and_servers


def __getattr__(name: str) -> Any:
    return load_hidden(sys.modules[__name__], name)
