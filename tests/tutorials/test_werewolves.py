"""The werewolves tutorial: the rules of the game, who is trained and who is not, and that it trains."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.record import EpisodeFiles
from ajet.schema.task import Task, WorkflowTask
from tests.support.judge_fixtures import judge_server
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_werewolves"
ROLES = dict(enumerate(("werewolf",) * 3 + ("seer", "witch", "hunter") + ("villager",) * 3, start=1))


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


class Says:
    """Answers by the question's last words."""

    def __init__(self, **answers: str) -> None:
        self.answers, self.heard = answers, list[str]()

    async def answer(self, text: str) -> str:
        self.heard.append(text)
        return next((said for word, said in self.answers.items() if f" {word}" in text), "nobody")


def game(**answers: dict[str, str]) -> Any:
    """Nine players with the seats of ROLES; `answers` by role or by `p` and a number."""
    players = {number: Says(**answers.get(f"p{number}", answers.get(role, {}))) for number, role in ROLES.items()}
    return of("game.py->Game")(players, ROLES)


def winner(played: Any, rounds: int = 3) -> str:
    return asyncio.run(played.play(rounds))


def test_werewolves_win_when_they_are_as_many_as_the_others() -> None:
    played = game(werewolf={"kill?": "4", "out?": "5"})
    assert winner(played, 1) == "others" and played.alive == [1, 2, 3, 6, 7, 8, 9], "the rounds were over"
    again = game(werewolf={"kill?": "9", "out?": "8"})
    again.alive, again.heard = [1, 2, 3, 7, 8, 9], {number: [] for number in ROLES}
    again.players = {number: again.players[number] for number in again.alive}
    assert winner(again) == "werewolves" and again.alive == [1, 2, 3, 7, 8]


def test_the_others_win_when_no_werewolf_is_left() -> None:
    played = game(p4={"at?": "2", "it?": "yes", "out?": "1"}, p6={"poison?": "3"}, witch={"poison?": "3", "out?": "1"})
    found = winner(played, 2)
    assert found == "others" and 1 not in played.alive and 3 not in played.alive
    assert played.unclear > 0, "the werewolves named nobody"


def test_what_each_hears() -> None:
    played = game(werewolf={"kill?": "7"}, seer={"at?": "2", "it?": "yes"}, witch={"Heal?": "yes"})
    winner(played, 1)
    heard = {number: " ".join(player.heard) for number, player in played.players.items()}
    assert "1 wants 7." in heard[2] and "wants" not in heard[8], "werewolves hear each other, nobody else does"
    assert "2 is a werewolf." in heard[4] and "4, the seer: 2 is a werewolf." in heard[7]
    assert 7 in played.alive and "7 dies. Heal?" in heard[5]


def test_a_vote_is_heard_by_those_after_it_and_its_outcome_by_all() -> None:
    played = game(p1={"out?": "9"}, p8={"out?": "9"})
    winner(played, 2)
    heard = {number: " ".join(player.heard) for number, player in played.players.items()}
    assert "8 votes 9." in heard[9] and "8 votes 9." not in heard[2] and "1 votes 9." in heard[2]
    assert all("9 is dead, a villager." in heard[number] for number in range(1, 9))


def test_a_hunter_takes_somebody_along() -> None:
    played = game(werewolf={"kill?": "6"}, hunter={"shoot?": "2"})
    winner(played, 1)
    assert 6 not in played.alive and 2 not in played.alive


def test_an_answer_is_worth_who_died_in_its_night_or_day() -> None:
    lost = game(werewolf={"kill?": "4", "out?": "1"})
    winner(lost, 1)
    found = of("start.py->by_parts")(lost.parts, {1, 2, 3}, set(range(4, 10)))
    assert [(part.step, part.name, part.reward) for part in found] == [
        (0, "night", 1.0), (1, "night", 1.0), (2, "night", 1.0), (3, "day", -1.0), (4, "day", -1.0), (5, "day", -1.0),
    ]  # fmt: skip
    seer = of("start.py->by_parts")(lost.parts, {4}, {1, 2, 3})
    assert [(part.name, part.reward) for part in seer] == [("night", -1.0)], "it was asked once, and died"


@pytest.mark.parametrize("said", ["12", "1", "nobody at all", "99999999999999999999", ""])
def test_an_answer_that_names_nobody_counts_as_none(said: str) -> None:
    played = game(p1={"kill?": said})
    played.alive, played.heard = sorted(ROLES), {number: [] for number in ROLES}
    played.parts = [of("game.py->Part")("night")]
    assert asyncio.run(played.ask_target(1, "Night 1.", "Whom do you kill?")) is None and played.unclear == 1


def played(trained: list[str], opponents: Any = None, said: str = "4") -> tuple[Any, Any]:
    """Output and calls of a game whose trained agents always say the same."""
    config = load_experiment(FOLDER / "werewolves.yaml", overrides=[] if opponents is None else [
        f"werewolves.opponents={{base_url: '{opponents}', model: other}}"]).config  # fmt: skip
    workflow = of("start.py->ExampleWerewolves")(trainable_targets=trained)
    task = WorkflowTask(task=Task(task_id="t", metadata={"random_number": 5}))
    with scene(*[said] * 60, trainable=trained, config=config) as one:
        return asyncio.run(workflow.execute(task, one.tuner)), one.session.close()


def test_the_trained_role_talks_to_the_model_and_the_others_follow_rules() -> None:
    output, capture = played(["werewolf"])
    wolves = {f"Player{n}" for n, role in enumerate(output.metadata["roles"], start=1) if role == "werewolf"}
    assert {call.agent for call in capture.calls} == wolves and len(wolves) == 3
    assert all(call.trained and call.target == "werewolf" for call in capture.calls)
    dead = 6 - sum(output.metadata["roles"][number - 1] != "werewolf" for number in output.metadata["alive"])
    assert output.reward == (1.0 if output.metadata["winner"] == "werewolves" else 0.5 * dead / 6)
    assert output.is_success == (output.metadata["winner"] == "werewolves")
    assert [part.step for part in output.process] == list(range(len(capture.calls))), "each answer has its worth"


@pytest.mark.parametrize("trained", [[], ["werewolf", "seer"]])
def test_both_sides_are_not_trained_at_once(trained: list[str]) -> None:
    with pytest.raises(ValueError, match="one side"):
        played(trained)


def test_opponents_are_asked_at_another_endpoint_and_not_recorded() -> None:
    with judge_server(lambda asked: "yes, 1") as server:
        output, capture = played(["seer"], server.url)
    assert {call.target for call in capture.calls} == {"seer"} and all(call.trained for call in capture.calls)
    assert server.seen and {asked["model"] for asked in server.seen} == {"other"}
    assert output.is_success == (output.metadata["winner"] == "others")


def test_an_opponents_key_that_is_not_set_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOBODYS_KEY", raising=False)
    with pytest.raises(ValueError, match="NOBODYS_KEY, which is not set"):
        of("start.py->endpoint")({"base_url": "http://127.0.0.1:9/v1", "api_key_env": "NOBODYS_KEY"})


def test_agentjets_yaml_names_what_is_here(tmp_path: Path) -> None:
    """Its root, its references and no section `werewolves`; only model and token caps are given."""
    (tmp_path / "theirs.yaml").write_text(
        "ajet:\n  task_reader: {type: random_dummy}\n  task_judge: {judge_protocol: null}\n  rollout:\n"
        "    user_workflow: tutorial.example_werewolves.start->ExampleWerewolves\n    num_repeat: 6\n"
    )
    config = load_experiment(tmp_path / "theirs.yaml", overrides=["model.path=embedded:tiny-tools"]).config
    workflow = resolve_reference(config.ajet.rollout.user_workflow, base=tmp_path)()
    task = WorkflowTask(task=Task(task_id="t", metadata={"random_number": 5}))
    with scene(*["4"] * 60, trainable=workflow.trainable_targets, config=config) as one:
        assert asyncio.run(workflow.execute(task, one.tuner)).reward in (0.0, 1.0)


def test_what_is_demonstrated_can_be_heard_in_the_question() -> None:
    """Whoever is named lives and is another; the one before is followed most, and a friend less than anybody."""
    wolf = of("demonstrations.py->Beginner")(of("game.py->introduction")(2, ROLES), random.Random(0))
    chances = wolf.count_chances(
        "Day 2. Others alive: 1 4 5 7. Whom do you vote out? 3 is dead, a werewolf. 1 votes 5."
    )
    assert set(chances) == {"1", "4", "5", "7"} and sum(chances.values()) == pytest.approx(1)
    assert chances["5"] > 0.7 and chances["1"] < chances["4"] == chances["7"]
    unheard = wolf.count_chances("Night 1. Others alive: 1 4 5. Whom do you kill?")
    assert unheard["1"] == pytest.approx(0.4 / 3) and unheard["4"] == unheard["5"] == pytest.approx(0.4 / 3 + 0.3)


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_the_werewolves_alone_are_trained_and_come_to_win(tmp_path: Path) -> None:
    """The README's commands, with 24 of the 36 steps. The reward of 512 games at each end of the run rises, less what
    rules get at the same seats, which are easier or harder by more than is learned. It was 0.09 and 0.10 with two
    seeds; chance alone reaches 0.05 in one run of 40."""
    prints(FOLDER / "demonstrations.py", tmp_path / "demonstrations.jsonl")
    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), "player"], check=True, cwd=tmp_path, timeout=120)
    model = taught(FOLDER / "sft.yaml", tmp_path)
    steps = ["trainer_common.total_training_steps=24", "trainer_common.save_freq=24"]
    held_out, rewards = learned(FOLDER / "werewolves.yaml", tmp_path, "werewolves", model, *steps)
    assert len(rewards) == 24 and len(held_out) == 3
    run = tmp_path / "launcher_record" / "werewolves"
    ahead = [reward - ruled for reward, ruled in of("beside_rules.py->compared")(run)]
    assert mean(ahead[-8:]) > mean(ahead[:8]) + 0.05, ahead
    files = EpisodeFiles(run / "episodes")
    games = [episode for step in (1, 24) for episode in files.read(step, "train")]
    assert len(games) == 128 and all(game.status == "completed" for game in games)
    for game in games:
        assert {call.target for call in game.calls} == {"werewolf"} and all(call.trained for call in game.calls)
        wolves = {f"Player{n}" for n, role in enumerate(game.metadata["roles"], start=1) if role == "werewolf"}
        assert {call.agent for call in game.calls} <= wolves
