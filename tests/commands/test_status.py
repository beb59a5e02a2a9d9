"""`ajet status`: what a run's files say of now, as a person, a program and Prometheus read it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.commands.status import list_lines
from ajet.record import RunDirectory
from ajet.record.live_status import format_prometheus, read_live_status
from ajet.schema.episode import Outcome
from tests.record.test_run_directory import experiment
from tests.support.record_fixtures import episode

pytestmark = pytest.mark.slow


def step(run: RunDirectory, number: int) -> None:
    """Two of three episodes are trained, which versions 3 and 4 have sampled."""
    run.take_up()
    played = [episode(f"{number}-{each}", step=number) for each in range(3)]
    run.episodes.write(number, "train", played, {each.uuid: Outcome(number, 0.5) for each in played[:2]})
    times = {"seconds/step": 10.0, "seconds/rollout": 8.0, "seconds/update": 2.0}
    counts = {"train/episodes": 3, "train/sampled_tokens": 45, "train/reward": 0.25}
    run.metrics.log(number, times | counts, tasks=[number])


def test_depths_rates_staleness_and_which_side_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        for number in (4, 6):
            step(run, number)
        run.checkpoints.save(4, lambda folder: (folder / "model").touch(), {})
        run.status.set(phase="rollout", step=7, steps=20, depths={"leased": 5, "closed": 2})
        since = json.loads((run.path / "status.json").read_text())["since"]
        run.status.set(step=7)
        assert json.loads((run.path / "status.json").read_text())["since"] == since, "the phase is the same"
        found = read_live_status(run.path)
        assert (found.state, found.phase, found.step, found.steps) == ("running", "rollout", 7, 20)
        assert found.depths == {"leased": 5, "closed": 2} and found.phase_age is not None
        assert found.rates == {"steps_per_hour": 360.0, "episodes_per_second": 0.3, "tokens_per_second": 4.5}
        assert found.shares == {"rollout": 0.8, "update": 0.2}
        assert found.waits == "the trainer waits for rollout 80% of the time"
        assert found.staleness == {2: 2}, "trained in step 6, from version 5; the oldest call is of version 3"
        assert (found.checkpoint, found.behind) == (4, 2)
        shown = "\n".join(list_lines(found))
        assert "leased 5, closed 2" in shown and "step 7 of 20" in shown and shown.endswith("█ 2")
        for asked in ("--prometheus", "--json", "--once"):
            with pytest.raises(SystemExit) as ended:
                launcher.main(["status", "demo", asked, "--exp-dir", str(tmp_path)])
            assert not ended.value.code
        assert not found.oldest and not found.samplers, "nobody told"
        one = {"name": 'a "host"', "leases": 3, "age": 4.0, "version": 6, "episodes_per_second": 0.5}
        told = {
            "oldest": {"lease": 30.0, "waiting_group": 70.0},
            "samplers": [one, {"name": "b", "leases": 1, "age": 9.0}],
        }
        run.status.set(depths={"samplers": 2, "leased": 1, "free": 3, "closed": 0}, looked=time.time() - 10, **told)
        found = read_live_status(run.path)
        assert 40 <= found.oldest["lease"] < 70 <= found.oldest["waiting_group"] - 10, "and since it was looked"
        assert [(each["name"], each["age"] >= 14) for each in found.samplers] == [(one["name"], True), ("b", True)]
        shown = "\n".join(list_lines(found))
        assert re.search(r"oldest   lease 4\d s, waiting group 1\.\d min", shown)
        assert 'sampler  a "host": 3 leases, policy 6, 0.5 episodes per second, heartbeat 1' in shown
        assert "sampler  b: 1 lease, heartbeat 1" in shown
        scraped = format_prometheus(found)
        assert 'ajet_sampler_leases{run="demo",sampler="a \\"host\\""} 3\n' in scraped
        assert re.search(r'ajet_oldest_seconds\{run="demo",of="lease"\} 4\d', scraped)
        assert (
            scraped.count("ajet_sampler_episodes_per_second{") == 1 and scraped.count("ajet_sampler_age_seconds{") == 2
        )
        assert read_live_status(run.path).waits == "the trainer waits for samplers 80% of the time"
        run.status.set(depths={"samplers": 2, "leased": 0, "free": 0, "closed": 4})
        assert read_live_status(run.path).waits.endswith("; samplers wait for its next step, because no task is free")
    said = capsys.readouterr().out
    assert 'ajet_depth{run="demo",of="leased"} 5\n' in said and 'ajet_running{run="demo"} 1\n' in said
    assert 'ajet_staleness_episodes{run="demo",steps="2"} 2\n' in said
    assert "# TYPE ajet_rate gauge" in said and '"tokens_per_second": 4.5' in said
    over = read_live_status(tmp_path / "demo")
    assert over.state == "finished" and not over.depths
    shown = "\n".join(list_lines(over))
    assert re.match(r"demo: finished \d+ s ago, step 7 of 20\n", shown) and "waits" not in shown
