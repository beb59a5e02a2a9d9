"""`ajet prove` on real runs: what was recorded passes, and whatever is changed in the record is found and named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from ajet.commands.gc import collect_removable_files
from ajet.config import load_experiment
from ajet.context_tracker import timelines
from ajet.record import EpisodeFiles
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet_proof.auditing.audit import audit_run, trace_step, trace_task
from ajet_proof.auditing.export import export_episodes
from ajet_proof.auditing.report import encode_audit as audit_json
from ajet_proof.recorded.losses import GONE, NOT_ASKED
from ajet_proof.recorded.prove import ProofReport, prove_record
from ajet_proof.recorded.report import encode_report
from ajet_proof.recorded.steps import REMOVED
from tests.contract.conftest import TOOL_SETTINGS
from tests.support.ajet_process import ajet, metric_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tool_project, tmp_path_factory) -> Path:
    """A copy of it for further runs."""
    return Path(shutil.copytree(tool_project, tmp_path_factory.mktemp("proven") / "project"))


def trained(project: Path, name: str, *more: str) -> Path:
    yaml = next((project / "tool").glob("*.yaml"))
    settings = [f"experiment_name={name}", *TOOL_SETTINGS, *more]
    done = ajet("--conf", str(yaml), "--backbone", "local", *settings, cwd=project)
    assert done.returncode == 0, done.stdout
    return project / "launcher_record" / name


@pytest.fixture(scope="module")
def run(project) -> Path:
    return project / "launcher_record" / "plain"


@pytest.fixture
def copy(run, tmp_path) -> Path:
    """A run folder to spoil."""
    folder = tmp_path / "plain"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("logs"))
    return folder


def spoil(folder: Path, change: Callable[[Episode], None], step: int = 1) -> Episode:
    """Change the first episode of a step that has two calls, in the record."""
    files = EpisodeFiles(folder / "episodes")
    episodes = files.read(step)
    spoiled = next(episode for episode in episodes if len(episode.calls) > 1 and episode.calls[1].response_ids.size > 4)
    change(spoiled)
    for path in (files.path(step), files.path(step).with_suffix(".bin")):
        path.unlink()
    files.write(step, "train", episodes)
    return spoiled


def proven(folder: Path, **options) -> ProofReport:
    return prove_record(str(folder), folder.parent, **options)


def test_a_run_is_held_to_its_chain_and_followed_both_ways(project, run, tmp_path):
    done = ajet("audit", "plain", "--json", cwd=project)
    whole = json.loads(done.stdout)
    assert done.returncode == 0 and whole["chain"]["steps"] == 2 and whole["checkpoints"] == [1, 2]
    back = json.loads(audit_json(trace_step(run, 2)))
    used = next(each for each in back["episodes"] if each["trained_in"] == 2)
    recorded = EpisodeFiles(run / "episodes").recorded(2)
    episode, outcome = next(each for each in recorded if each[0].uuid == used["uuid"])
    assert [call["sampled"] for call in used["calls"]] == [len(call.response_ids) for call in episode.calls]
    assert (used["reward"], used["advantage"]) == (episode.reward, outcome.advantage)
    assert used["trained_tokens"] == episode.sampled_tokens - episode.untrained_with(outcome).total()
    assert used["policy"] == [1, 1] and used["played_by"]["backbone"] == "local"
    forward = json.loads(audit_json(trace_task(run, used["task"])))
    assert used["uuid"] in {each["uuid"] for each in forward["episodes"]}
    assert 2 in {each["step"] for each in forward["steps"]}
    for name in ("rows.jsonl", "rows.parquet"):
        export_episodes(run, tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["uuid"] for row in lines] == [row["uuid"] for row in table] and lines[0]["calls"]
    assert next(row for row in table if row["uuid"] == used["uuid"])["first_checkpoint"] == 2
    spoiled = shutil.copytree(run, tmp_path / "spoiled")
    with (spoiled / "episodes" / "step-2.bin").open("r+b") as arrays:
        arrays.seek(20)
        arrays.write(b"\x00\x01")
    shown = ajet("audit", str(spoiled), cwd=project)
    assert shown.returncode == 1 and "changed  episodes/step-2.bin: the arrays of episode" in shown.stdout


def test_what_gc_removed_is_not_held_and_not_wrong(copy):
    assert collect_removable_files(str(copy), copy.parent, arrays=1, yes=True).sizes["arrays"][0] == 2, "steps 0 and 1"
    report = proven(copy, ids_only=True)
    assert report.ok and report.unheld_steps == {REMOVED: 1} and report.held_steps == 1, report.wrong_steps
    assert audit_run(copy).ok


def test_a_run_is_proven_with_the_weights_of_every_version(run):
    report = proven(run)
    proof = report.proof
    assert proof.ok, str(proof)
    assert {(play.split, play.step) for play in report.plays} == {
        ("train", 1), ("train", 2), ("validation", 0), ("validation", 2)
    }  # fmt: skip
    assert all(play.recomputed == sum(play.sampled.values()) > 0 for play in report.plays)
    assert list(report.weights) == [0, 1, 2] and report.computed_in == "float32 on cpu"
    tally = proof.counts["sampled"]
    assert tally.tokens == tally.checked == tally.equal == tally.compared
    assert tally.gap_max < 1e-3 and abs(proof.mismatch_kl) < 1e-4
    assert proof.counts["scaffold"].equal == proof.counts["scaffold"].tokens > 0
    content = json.loads(encode_report(report))
    assert content["ok"] and content["classes"]["sampled"]["compared"] == tally.compared


def test_other_weights_are_told_apart(run, monkeypatch):
    """The recomputation can fail: with one version's weights taken for another's it does."""
    from ajet_proof.recorded import prove

    honest = prove.find_weights

    def swapped(checkpoints, experiment):
        return honest(checkpoints, experiment) | {1: (None, "those that training began with")}

    monkeypatch.setattr(prove, "find_weights", swapped)
    before = proven(run, steps=[1]).proof.counts["sampled"].gap_max
    assert proven(run, steps=[2], tolerance=10.0).proof.counts["sampled"].gap_max > 20 * before


def test_lora_runs_and_truncated_sampling(project):
    folder = trained(
        project, "lora", "trainer_common.lora.rank=4", "rollout.top_p=0.9", "trainer_common.total_training_steps=1",
        "trainer_common.test_freq=1", "trainer_common.algorithm.dynamic_sampling=false",
    )  # fmt: skip
    report = proven(folder)
    assert report.proof.ok, str(report.proof)
    assert list(report.weights) == [0, 1] and report.proof.counts["sampled"].gap_max < 1e-3
    row = next(row for row in metric_rows(folder) if "tasks" in row)
    assert row["logprob_gap_max"] < 1e-3, "with top_p the update cannot compare, the sample does"


def test_the_sample_of_every_step_is_in_the_metrics(run):
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["proof/wrong_tokens"] for row in rows] == [0, 0]
    assert [row["proof/episodes"] for row in rows] == [2, 2] and all(row["proof/tokens"] > 50 for row in rows)
    assert all(row["logprob_gap_max"] < 1e-3 for row in rows)


def test_a_wrong_token_in_a_step_is_an_error_in_its_log(run):
    from loguru import logger

    from ajet.backbone.local import LocalBackbone
    from ajet.rollout.components import make_renderer
    from ajet_proof.recorded.each_step import StepProof

    experiment = load_experiment(run / "resolved.yaml", overrides=["context_tracker.proof_sample=9"])
    episodes = EpisodeFiles(run / "episodes").read(1)
    backbone = LocalBackbone(experiment)
    said: list[str] = []
    sink = logger.add(lambda line: said.append(str(line)), level="ERROR")
    try:
        proof = StepProof(experiment.ajet, make_renderer(experiment.ajet, backbone.tokenizer))
        metrics = proof.metrics(episodes, 1, lambda _: 0)
        assert metrics["proof/episodes"] == 8 and metrics["proof/wrong_tokens"] == 0 and not said
        assert proof.recomputed(episodes, 1, backbone)["logprob_gap_max"] < 1e-3
        episodes[3].calls[0].suffix_ids[5] += 1
        assert proof.metrics(episodes, 1, lambda _: 0)["proof/wrong_tokens"] >= 1
        assert proof.recomputed(episodes, 1, backbone) == {}
        wrong = f"a token of a recorded episode is wrong: episode {episodes[3].uuid}, call 0, position 5: "
        assert re.search(f"step 1: {wrong}", "".join(said))
    finally:
        logger.remove(sink)
        backbone.close()


def test_the_loss_of_each_step_is_computed_again_at_the_weights_that_it_began_with(run, copy):
    report = proven(run)
    assert report.ok and report.held_losses == 2 and not report.unheld_losses, report.wrong_steps
    ids = proven(run, ids_only=True)
    assert ids.held_losses == 0 and ids.unheld_losses == {NOT_ASKED: 2}
    path = copy / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    told = next(row for row in rows if row.get("step") == 2 and "loss" in row)
    told["loss"], honest = told["loss"] + 0.01, told["loss"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (wrong,) = proven(copy).wrong_steps
    assert wrong.step == 2 and wrong.what.startswith(f"loss is {told['loss']} in metrics.jsonl, but {honest:.4g}"[:-3])
    shutil.rmtree(copy / "checkpoints" / "step-1")
    gone = proven(copy)
    assert gone.ok and gone.held_losses == 1 and gone.unheld_losses == {GONE: 1}


# Each change of the record, and how it is named.


def named(report: ProofReport, episode: Episode, call: int, position: int) -> bool:
    found = [(token.episode, token.call, token.position) for token in report.proof.wrong]
    return (episode.uuid, call, position) in found


def prompt_size(episode: Episode, call: int) -> int:
    return episode.calls[call].prefix + episode.calls[call].suffix_ids.size


def test_a_swapped_id(copy):
    def change(episode: Episode) -> None:
        episode.calls[1].response_ids[2] += 1
        episode.timelines[:], _ = timelines(episode.calls)

    episode = spoil(copy, change)
    report = proven(copy, steps=[1])
    assert named(report, episode, 1, prompt_size(episode, 1) + 2), str(report.proof)
    assert "the reply's ids differ from its message" in str(report.proof) and "log-probability" in str(report.proof)
    done = ajet("prove", str(copy), "--ids-only", cwd=copy.parent)
    assert done.returncode == 1 and f"episode {episode.uuid}, call 1, position" in done.stdout, done.stdout
    assert "Not proven" in done.stdout


def test_a_shifted_mask(copy):
    def change(episode: Episode) -> None:
        line = episode.timelines[0]
        episode.timelines[0] = replace(line, mask=np.concatenate([[False], line.mask[:-1]]))

    episode = spoil(copy, change)
    report = proven(copy, ids_only=True)
    assert named(report, episode, 0, prompt_size(episode, 0)), str(report.proof)
    assert "mask" in str(report.proof)


def test_a_wrong_log_probability(copy):
    def change(episode: Episode) -> None:
        episode.calls[1].logprobs_unit[3] -= 0.3
        episode.timelines[:], _ = timelines(episode.calls)

    episode = spoil(copy, change)
    assert proven(copy, ids_only=True).proof.ok, "ids alone say nothing of it"
    report = proven(copy, steps=[1])
    (wrong,) = report.proof.wrong
    assert named(report, episode, 1, prompt_size(episode, 1) + 3), str(wrong)
    assert wrong.found == pytest.approx(wrong.expected - 0.3, abs=1e-3) and "log-probability" in wrong.what


def test_a_wrong_log_probability_of_the_distribution_sampled_from(copy):
    def change(episode: Episode) -> None:
        episode.calls[0].logprobs[1] -= 0.3
        episode.timelines[:], _ = timelines(episode.calls)

    episode = spoil(copy, change)
    report = proven(copy, steps=[1])
    assert named(report, episode, 0, prompt_size(episode, 0) + 1), str(report.proof)
    assert "at temperature 0.8" in str(report.proof)


@pytest.mark.parametrize("call", [0, -1])
def test_a_dropped_call(copy, call):
    path = EpisodeFiles(copy / "episodes").path(1)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    row = next(row for row in rows if len(row["calls"]) > 1)
    index = row["calls"].pop(call)["index"]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    (wrong,) = proven(copy, ids_only=True).proof.wrong
    assert (wrong.episode, wrong.call) == (row["uuid"], index) and "missing" in wrong.what


# What may be asked for, and what is said where something is not there.


def test_one_episode_one_step_one_file(run):
    files = EpisodeFiles(run / "episodes")
    uuid = files.read(2)[0].uuid
    for named_, steps, count in ((uuid[:8], (), 1), (str(files.path(2)), (), 8), ("plain", (2,), None)):
        report = prove_record(named_, run.parent, steps=steps, ids_only=True)
        assert report.target.run == run and {play.step for play in report.plays} == {2}
        assert count is None or report.proof.episodes == count


def test_steps_whose_weights_are_gone_are_named(copy):
    shutil.rmtree(copy / "checkpoints" / "step-1")
    done = ajet("prove", "plain", "--exp-dir", str(copy.parent), "--at-most", "2", cwd=copy.parent)
    assert done.returncode == 0, done.stdout
    text = " ".join(done.stdout.split())
    assert "Recomputed in part: validation after step 0, 2; step 1." in text, text
    assert "Ids only: step 2: no checkpoint has the weights that sampled them." in text
    assert "version 0 (embedded:tiny-tools), version 2 (checkpoints/step-2)" in text
    assert "not proven: no checkpoint has the weights" in text and "not proven: their episodes were left out" in text
    assert "No wrong token in what could be checked" in text and "Proven:" not in text


def test_a_debug_run(project):
    yaml = next((project / "tool").glob("*.yaml"))
    assert ajet("--conf", str(yaml), "experiment_name=looked", "model.dtype=float32", cwd=project).returncode == 0
    (folder,) = (project / "launcher_record" / "looked" / "debug").iterdir()
    done = ajet("prove", str(folder), "--json", cwd=project)
    content = json.loads(done.stdout)
    assert done.returncode == 0 and content["ok"] and content["classes"]["sampled"]["compared"] > 0, done.stdout


@pytest.mark.parametrize(
    "name, steps, what",
    [("nosuch", (), "no run and no episode"), ("plain", (7,), "No episodes of step 7"), ("", (), "no run")],
)
def test_what_is_not_there(run, name, steps, what):
    with pytest.raises(UserError, match=what):
        prove_record(name or "x", run.parent, steps=steps)
