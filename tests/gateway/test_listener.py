"""Where a server cannot listen, what is said of it helps with what was asked for."""

from __future__ import annotations

import socket

import pytest

from ajet.commands.sampling.sample import SampleOptions, sample
from ajet.commands.serve import assemble_server
from ajet.config import load_experiment
from ajet.gateway.listener import listen
from ajet.schema.errors import UserError
from ajet.store import Address
from ajet.train.parts import assemble

YAML = """
ajet:
  model: {path: none}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: workflow.py->agent}
"""


def test_a_port_that_is_taken_and_an_address_that_is_not_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="already in use") as error:
        listen("127.0.0.1", taken.getsockname()[1], name="proxy", where="--host, --port")
    assert error.value.do.startswith("set another port")
    for host in ("192.0.2.1", "256.256.256.256"):
        with pytest.raises(UserError, match="cannot listen") as error:
            listen(host, 0, name="proxy", where="--host, --port")
        assert error.value.do.startswith("set an address of this machine")


def test_a_gateway_that_cannot_listen_is_said_before_a_model_is_opened(tmp_path, monkeypatch) -> None:
    (tmp_path / "workflow.py").write_text("async def agent(task, tuner): ...\n")
    (tmp_path / "x.yaml").write_text(YAML)
    monkeypatch.setattr("ajet.backbone.open_backbone", lambda experiment: pytest.fail("the model was opened first"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = [f"ajet.gateway.port={taken.getsockname()[1]}"]
        experiment = load_experiment(tmp_path / "x.yaml", backbone="debug", overrides=settings)
        for opened in (assemble(experiment, run_id="r"), assemble_server(experiment, None)):  # type: ignore[arg-type]
            with pytest.raises(UserError, match="gateway cannot listen .* already in use"), opened:
                pass
        options = SampleOptions(Address(tmp_path / "store.db"))
        experiment = load_experiment(tmp_path / "x.yaml", backbone="local", overrides=settings)
        with pytest.raises(UserError, match="gateway cannot listen"):
            sample(experiment, options)
