"""The clients by name.

Invariant: this is the only list of them; the names are those of `environment.mcp_client`.
"""

from __future__ import annotations

from typing import Literal

from ajet.environment.mcp.contract import Client

ClientName = Literal["thin", "sdk"]


def client_of(name: ClientName) -> Client:
    """The client of that name. The SDK's is imported when it is chosen."""
    if name == "sdk":
        from ajet.environment.mcp.sdk import SdkClient

        return SdkClient()
    from ajet.environment.mcp.thin import ThinClient

    return ThinClient()
