"""Where a server cannot listen, what is said of it helps with what was asked for."""

from __future__ import annotations

import socket

import pytest

from ajet.gateway.listener import listen
from ajet.schema.errors import UserError


def test_a_port_that_is_taken_and_an_address_that_is_not_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="already in use") as error:
        listen("127.0.0.1", taken.getsockname()[1], name="proxy", where="--host, --port")
    assert error.value.do.startswith("name another port, or 0")
    for host in ("192.0.2.1", "256.256.256.256"):
        with pytest.raises(UserError, match="cannot listen") as error:
            listen(host, 0, name="proxy", where="--host, --port")
        assert error.value.do.startswith("name an address of this machine")
