"""`ajet prove` on a run whose episodes real clients played: ids, and log-probabilities by the trainer's forward pass.

The tokens are the script's; their log-probabilities are those that embedded:tiny-tools gives them, so that a proof by
that model's forward pass must find them again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ajet.cli.launcher import main
from ajet.config import load_experiment
from ajet.context_tracker import timelines
from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model
from ajet.engine.scripted import ScriptedEngine
from ajet.record.episodes import EpisodeFiles
from ajet.schema.episode import Episode
from ajet.schema.task import Task
from ajet_harness.presets import list_harnesses
from tests.support.client_fixtures import PATHS, Cell, Plays, all_plays, stage, told_by

OTHER_CLIENTS = {*list_harnesses(), "gemini-cli", "agentscope 2"}
"""Clients with prompts of thousands of tokens, or in an environment of their own: proven in their own tests."""
CONFIG = """\
ajet:
  experiment_name: clients
  backbone: local
  model: {path: "embedded:tiny-tools", dtype: float32}
  rollout: {temperature: 0.7}
  trainer_common: {device: cpu}
"""


class WeighedEngine(ScriptedEngine):
    """The script's tokens, with the log-probabilities that the model gives them."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """See TokenEngine."""
        chunks = [chunk async for chunk in ScriptedEngine.generate(self, request)]
        said = [token for chunk in chunks for token in chunk.ids]
        chosen, unit = weigh(request.prompt_ids.tolist(), said, request.sampling.temperature)
        for chunk in chunks:
            size = len(chunk.ids)
            chunk.logprobs, chosen = chosen[:size], chosen[size:]
            chunk.logprobs_unit, unit = unit[:size], unit[size:]
            yield chunk


@cache
def tiny_model() -> Any:
    import torch

    return load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)


def weigh(prompt: list[int], said: list[int], temperature: float) -> tuple[list[float], list[float]]:
    """Log-probabilities of `said` after `prompt`, at `temperature` and at 1."""
    import torch

    with torch.no_grad():
        logits = tiny_model()(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1].float()
    picked = torch.tensor(said)[:, None]
    at, unit = (torch.log_softmax(logits / t, dim=-1).gather(1, picked)[:, 0].tolist() for t in (temperature, 1.0))
    return at, unit


def chosen() -> Plays:
    """A cell for each client and dialect: the streaming one."""
    plays = all_plays()
    return Plays({cell: play for cell, play in plays.items() if cell.streaming and cell.client not in OTHER_CLIENTS})


def record(cell: Cell, play: Any) -> Episode:
    """Play a cell, as an episode of a run."""
    with stage(engine=WeighedEngine, version=0) as on:
        told_by(play, on, cell.streaming)
        capture = on.session.close()
    lines, untrained = timelines(capture.calls)
    task = Task(main_query=str(cell), task_id=str(cell))
    return Episode(
        *(uuid4().hex, task, 0, 1, "train", task.task_id),
        timelines=list(lines),
        untrained=untrained,
        calls=capture.calls,
        messages=capture.messages,
        tools=capture.tools,
    )


def prove(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """The command's exit code and what it said."""
    capsys.readouterr()  # what the clients printed
    with pytest.raises(SystemExit) as ended:
        main(["prove", str(run), "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


def write_run(folder: Path, config: str, episodes: list[Episode]) -> Path:
    """A run's folder, as far as a proof needs it."""
    folder.mkdir()
    (folder / "resolved.yaml").write_text(config)
    EpisodeFiles(folder / "episodes").write(1, "train", episodes)
    return folder


@pytest.mark.slow
def test_the_episodes_of_every_client_pass_and_one_wrong_token_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG)
    config = load_experiment(file).dump_resolved()
    plays = chosen()
    assert {cell.dialect for cell in plays} == set(PATHS)
    assert {cell.client for cell in plays} == {cell.client for cell in all_plays()} - OTHER_CLIENTS
    episodes = [record(cell, play) for cell, play in plays.items()]

    code, said = prove(write_run(tmp_path / "clients", config, episodes), capsys)
    assert code == 0 and said["ok"] and said["episodes"] == len(plays) and not said["forks"]
    sampled = said["classes"]["sampled"]
    assert sampled["tokens"] == sampled["checked"] == sampled["equal"] == sampled["compared"] > 0
    assert 0 < sampled["gap_max"] < 1e-3
    assert not said["unchecked"]

    call = episodes[0].calls[1]
    call.response_ids = call.response_ids.copy()
    call.response_ids[3] += 1
    code, said = prove(write_run(tmp_path / "spoiled", config, episodes[:1]), capsys)
    assert code == 1
    where = [(wrong["episode"], wrong["call"], wrong["position"]) for wrong in said["wrong"]]
    assert (episodes[0].uuid, 1, call.prefix + len(call.suffix_ids) + 3) in where
