"""`ajet prove` raises no false alarm: random sessions of clients that spell JSON anew, under every family's template.

The model's replies are those that its template would spell, with JSON of its own; the client returns tool calls as
JavaScript's JSON.stringify writes them, thoughts or none, edits what was said, asks twice, and takes tools away.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest

from ajet.cli.launcher import main
from ajet.config import Experiment, load_experiment
from ajet.context_tracker import timelines
from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from ajet.gateway import Gateway
from ajet.record.episode_codec import decode, encode
from ajet.record.episodes import EpisodeFiles
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.episode import build_episode
from ajet.schema.episode import Episode, Verdict
from ajet.schema.task import Task
from ajet.tokens import Renderer, TemplateRefused
from ajet.tokens.template_doctor import TOOL, call, own_reply
from ajet_proof.recorded.prove import prove_episode
from tests.support.published_templates import FAMILIES, family

pytestmark = pytest.mark.slow

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a skiff?"}]
SURE = {"role": "user", "content": "Sure?"}
STOPS = ("page", "boat", "a small")


def as_javascript(value: Any) -> str:
    """What JSON.stringify writes: no blanks, no escapes, no difference between 1.0 and 1."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{as_javascript(key)}:{as_javascript(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def numbered(word: str, page: Any, index: int) -> dict[str, Any]:
    """A call of TOOL whose page is any number."""
    made = call(word, 1, index)
    made["function"]["arguments"] = json.dumps({"word": word, "page": page}, ensure_ascii=False)
    return made


def reply_to(draw: random.Random, renderer: Renderer, messages: list[Any], tools: Any) -> list[int]:
    """What the model samples next."""
    kind = draw.choice(["call", "call", "answer", "answer", "letters", "cut"])
    said: dict[str, Any] = {"role": "assistant", "content": draw.choice(["A small boat.", "Look: page 3.", "naïve π"])}
    if kind == "call" and tools:
        page = draw.choice([1, 2.0, 1e5, 3.5, -0.0])
        said = {"role": "assistant", "content": None, "tool_calls": [numbered(draw.choice(["skiff", "π"]), page, 1)]}
    if (renderer.thinks or renderer.template.style == "harmony") and draw.random() < 0.6:
        said["reasoning_content"] = "I look it up."
    follow = SURE
    if said.get("tool_calls"):
        follow = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a small boat"}
    try:
        ids = own_reply(renderer, messages, said, follow, tools, respell=draw.random() < 0.7)
    except TemplateRefused:
        ids = np.append(renderer.encode("A boat."), renderer.end_ids[0])
    if kind == "letters":  # as no encoder would spell it
        letters = [renderer.encode(letter) for letter in renderer.decode(ids[:-1])]
        ids = np.append(np.concatenate(letters), ids[-1])
    return ids[: max(1, len(ids) // 2)].tolist() if kind == "cut" else ids.tolist()


def returned(draw: random.Random, said: dict[str, Any], *, thoughts: bool) -> dict[str, Any]:
    """A reply as the client sends it back."""
    back = {name: value for name, value in said.items() if name in ("role", "content", "tool_calls")}
    if thoughts and said.get("reasoning_content"):
        back["reasoning_content"] = said["reasoning_content"]
    for each in back.get("tool_calls") or ():
        if draw.random() < 0.8:
            each["function"]["arguments"] = as_javascript(json.loads(each["function"]["arguments"]))
    return back


async def play(endpoint: Any, draw: random.Random, renderer: Renderer, script: list[Any]) -> None:
    """A few turns; now and then the client does what clients do."""
    thoughts = draw.random() < 0.5
    tools: list[Any] | None = [TOOL] if draw.random() < 0.8 else None
    messages = deepcopy(ASK)
    async with httpx.AsyncClient(transport=endpoint.transport(), timeout=60) as http:
        for _ in range(draw.randint(2, 5)):
            body: dict[str, Any] = {"model": "any", "messages": messages, **({"tools": tools} if tools else {})}
            if draw.random() < 0.15:
                body["stop"] = draw.choice(STOPS)
            for _ in range(draw.choice([1, 1, 2])):
                script.append(reply_to(draw, renderer, messages, tools))
                done = await http.post(
                    f"{endpoint.base_url}/chat/completions",
                    headers={"authorization": f"Bearer {endpoint.api_key}", "content-type": "application/json"},
                    content=json.dumps(body),
                )
                assert done.status_code == 200, done.text
            said = returned(draw, done.json()["choices"][0]["message"], thoughts=thoughts)
            if "stop" in body and draw.random() < 0.5 and not said.get("tool_calls"):
                said["content"] = (
                    (said["content"] or "") + body["stop"] + draw.choice(["", " 3\nSo <b>é", "\n\n4 ", "5"])
                )
            messages = [*messages, said]
            calls = said.get("tool_calls") or []
            messages += [{"role": "tool", "tool_call_id": each["id"], "content": "a small boat"} for each in calls]
            if not calls:
                messages.append(SURE)
            change = draw.random()
            if change < 0.08:
                messages = [messages[0], {"role": "user", "content": "What is a boat?"}, *messages[2:]]
            elif change < 0.14:
                tools = None if tools else [TOOL]


def session_of(name: str, seed: int) -> Episode:
    """One random session, as an episode of a run."""
    draw, renderer = random.Random(f"{name}/{seed}"), Renderer(family(name))
    script: list[Any] = []
    engine = ScriptedEngine(lambda _: ScriptedReply(ids=script[-1], ended=False), version=0)
    gateway = Gateway(engine, renderer, max_model_len=8000, max_response_tokens=500).start()
    try:
        session = gateway.open("e", key=(0, 0, 0), sampling=Sampling(500, temperature=0.7), trainable=None)
        asyncio.run(play(session("a", "a", None), draw, renderer, script))
        capture = session.close()
    finally:
        gateway.close()
    task = Task(main_query=name, task_id=f"{name}/{seed}")
    lines, untrained = timelines(capture.calls)
    return Episode(
        *(uuid4().hex, task, 0, 1, "train", task.task_id, seed),
        timelines=list(lines),
        untrained=untrained,
        calls=capture.calls,
        messages=capture.messages,
        tools=capture.tools,
        started=capture.calls[0].started,
    )


def proven(
    folder: Path, name: str, seeds: Sequence[int], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    """What `ajet prove --ids-only` says of a run with these sessions, and its exit code."""
    folder.mkdir()
    model = folder / "model"
    family(name).save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 8000}')
    yaml = folder / "run.yaml"
    settings = f"backbone: local, model: {{path: {model}}}, rollout: {{temperature: 0.7}}"
    yaml.write_text(f"ajet: {{experiment_name: sessions, {settings}}}\n")
    (folder / "resolved.yaml").write_text(load_experiment(yaml).dump_resolved())
    EpisodeFiles(folder / "episodes").write(1, "train", [session_of(name, seed) for seed in seeds])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["prove", str(folder), "--ids-only", "--json"])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_random_sessions_of_clients_that_spell_json_anew_are_proven(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = proven(tmp_path / "sessions", name, (0, 1, 2, 4, 17), capsys)
    assert code == 0 and said["ok"], [f"{wrong['episode']} {wrong['call']}: {wrong['what']}" for wrong in said["wrong"]]
    assert said["classes"]["sampled"]["equal"] == said["classes"]["sampled"]["checked"] > 100


@pytest.mark.extra_slow
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_many_random_sessions(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = proven(tmp_path / "sessions", name, range(100, 130), capsys)
    assert code == 0 and said["ok"], [f"{wrong['episode']} {wrong['call']}: {wrong['what']}" for wrong in said["wrong"]]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets this process's time zone."""

    def set_to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


def test_a_prompt_with_the_date_is_proven_in_another_time_zone(zone: Callable[[str], None], tmp_path: Path) -> None:
    settings = Experiment.from_dict({"ajet": {"model": {"path": "m"}}}, base=tmp_path).ajet
    words = Renderer(family("llama3.2"))
    zone("EAST-14")
    before = words.on_day(date.today())
    played = AttemptResult(started=time.time())
    engine = ScriptedEngine(lambda _: ScriptedReply(ids=before.encode("A boat.").tolist()), version=0)
    gateway = Gateway(engine, words, max_model_len=8000, max_response_tokens=500).start()
    try:
        sampling = Sampling(500, temperature=settings.rollout.temperature)
        session = gateway.open("e", key=(0, 0, 0), sampling=sampling, trainable=None, started_at=played.started)
        chat = session("a", "a", None)
        with httpx.Client(
            base_url=chat.base_url, headers={"authorization": f"Bearer {chat.api_key}"}, timeout=60
        ) as web:
            assert web.post("chat/completions", json={"model": "any", "messages": ASK}).status_code == 200
        played.capture = session.close()
    finally:
        gateway.close()
    made = build_episode(Identity("run", "train", 1, Task(task_id="t"), 0, 0, 0), played, Verdict(1.0), settings)
    row, blob = encode(made)
    zone("WEST+11")
    assert prove_episode(decode(row, blob), settings, words).ok, "25 hours apart the date is never the same"
