"""How long a step would take, by what debug measured."""

from __future__ import annotations

from ajet.commands.pace import EpisodePace, describe_step_time, estimate_step_seconds
from ajet.config import AjetConfig
from ajet.record.console import format_seconds


def settings(**changes: object) -> AjetConfig:
    config = AjetConfig()
    for name, value in changes.items():
        section, key = name.split("__")
        object.__setattr__(getattr(config, section), key, value)
    return config


def test_seconds_of_a_step_are_between_no_speed_up_and_a_full_one() -> None:
    pace = EpisodePace(episodes=16, seconds=80.0, tokens=1600, at_once=4, longest=47.0)
    eight = settings(data__train_batch_size=8, rollout__num_repeat=8, rollout__max_num_seqs=64)
    assert estimate_step_seconds(pace, eight) == (47.0, 320.0), "no step is over before its longest episode"
    quick = pace._replace(longest=1.0)
    assert estimate_step_seconds(quick, eight) == (20.0, 320.0), "64 at once in place of 4"
    object.__setattr__(eight.rollout, "max_env_worker", 4)
    assert estimate_step_seconds(quick, eight) == (320.0, 320.0)
    assert describe_step_time(quick, eight).startswith(
        "about 5 min to run 64 episodes (at 20 tokens per second with 4 at the same time)"
    )
    assert EpisodePace.from_metrics({"debug/episodes": 16.0, **pace.to_metrics()}) == pace
    assert EpisodePace.from_metrics({"debug/episodes": 16.0}) is None, "no pace was recorded"
    assert [format_seconds(s) for s in (1.23, 40, 100, 9000)] == ["1.2 s", "40 s", "2 min", "2.5 h"]
