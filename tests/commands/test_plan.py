"""`ajet plan`: what a run would do and take, and a rehearsal of its largest update."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from loguru import logger

from ajet.backbone.local import LocalBackbone
from ajet.cli import launcher
from ajet.commands.pace import EpisodePace
from ajet.config import Experiment, load_experiment
from ajet.schema.commands import format_command
from ajet.train import footprint
from tests.support.judge_fixtures import judge_server
from tests.support.verl_fixtures import without_verl

YAML = """ajet:
  model: {path: embedded:tiny-tools, dtype: float32}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->agent, num_repeat: 4, max_model_len: 200}
  data: {train_batch_size: 2, max_prompt_length: 100, max_response_length: 80}
  trainer_common: {use_kl_loss: false, total_training_steps: 3, threads: 1, device: cpu}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "x.yaml").write_text(YAML)
    (tmp_path / "agent.py").write_text("async def agent(task, tuner):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    with pytest.raises(SystemExit) as ended:
        launcher.main(["plan", "--conf", "x.yaml", *more])
    told = capsys.readouterr()
    assert ended.value.code == 0, told
    return " ".join(told.out.split())


def test_a_plan_says_what_a_run_takes_and_starts_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = planned(capsys, "store.type=sqlite")
    assert f"store sqlite:{project}/launcher_record/x/store.sqlite" in said
    assert "backbone local" in said, "not debug, which trains nothing"
    assert "2 tasks × 4 episodes" in said and "a pass of up to 1,440 tokens" in said and "GiB are free" in said
    assert "MiB per checkpoint, at most 1 at once" in said
    assert f"not measured yet; to measure it: {format_command('--conf', 'x.yaml', '--backbone', 'debug')}" in said
    start = format_command("--conf", "x.yaml", "--backbone", "local", "store.type=sqlite")
    assert said.endswith(f"Nothing was started. To start the run: {start}")
    assert not (project / "launcher_record").exists()
    assert "memory about" not in planned(capsys, "--backbone", "debug")


ENDPOINT = ("rollout.engine=endpoint", "rollout.endpoint.base_url=http://127.0.0.1:9/v1", "rollout.endpoint.model=m")


@pytest.mark.parametrize(
    ("settings", "key", "validated"),
    [
        (["trainer_common.optim.lr_schedule=cosine", "trainer_common.total_training_steps=null"], "lr_schedule", True),
        (["trainer_common.optim.lr_schedule=linear", "trainer_common.total_training_steps=null"], "lr_schedule", True),
        (["rollout.temperature=0"], "rollout.temperature", True),
        ([*ENDPOINT], "rollout.engine", True),
        (["rollout.engine=vllm", "rollout.vllm.base_url=http://127.0.0.1:9/v1"], "rollout.vllm.base_url", False),
        (["rollout.engine=vllm", "trainer_common.lora.adapters={a: {rank: 2}}"], "rollout.engine", True),
        (["rollout.deterministic=true", "rollout.group_deadline=5"], "rollout.group_deadline", True),
        (["data.curriculum.prefer=hard", "trainer_common.mode=async"], "data.curriculum.prefer", True),
        (["rollout.train_turn=agent.py->agent"], "rollout.train_turn", False),
        (["trainer_common.device=mps"], "trainer_common.device", False),
        (["rollout.isolation=sandbox", "environment.use=prices.py"], "rollout.isolation", False),
        (["sft.objective=sft", "sft.train_files=a.jsonl", "sft.from_run=b"], "sft.from_run", True),
        (["sft.objective=sft", "sft.train_files=no.jsonl"], "sft.train_files", True),
        (["sft.objective=sft", "sft.from_run=nobody"], "nobody", True),
    ],
)
def test_what_a_launch_refuses_is_refused_before(
    project: Path, capsys: pytest.CaptureFixture[str], settings: list[str], key: str, validated: bool
) -> None:
    """`validated`: by `config validate`, too, which runs no code of the user's and knows no machine."""
    played = not any(each.startswith("sft.") for each in settings)  # there is no dry run of given replies
    local = ("--conf", "x.yaml", "--backbone", "local")
    for command_line in (["config", "validate", *local],) * validated + ([*local, "--dry-run"],) * played:
        with pytest.raises(SystemExit) as ended:
            launcher.main([*command_line, *settings])
        told = capsys.readouterr()
        assert ended.value.code == 2 and key in told.err, told
    assert not (project / "launcher_record").exists()


def test_an_epoch_of_a_curriculum_is_as_long_as_the_run_s(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 64 tasks 3: a batch of 16 plays each five times."""
    named = ["task_reader.random_dummy.size=64", "data.train_batch_size=16"]
    drawn = ["data.curriculum.prefer=hard", "data.curriculum.share=0.04"]
    assert "64 train, " in planned(capsys, *named)
    said = planned(capsys, *named, *drawn)
    assert "64 train (3 an epoch)" in said and "a step has 16 tasks, but the data have only 3" in said


def test_services_that_are_started_for_a_plan_are_ended_and_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "x.yaml").write_text(YAML + "  services: {lake: {command: sleep 99}, sea: {command: sleep 99}}\n")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    named = "No process was started except lake, sea of ajet.services"
    assert named in planned(capsys)
    with pytest.raises(SystemExit):
        launcher.main(["--conf", "x.yaml", "--dry-run"])
    assert " ".join(capsys.readouterr().out.split()).endswith(f"{named} (stopped again) (--dry-run).")
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_seconds_come_from_what_was_measured_with_this_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"step": 0, "debug/episodes": 8, "model": "another", **EpisodePace(8, 40.0, 800, 4, 9.0).to_metrics()}
    for name, model in (("20260102-000000", "another"), ("20260101-000000", "embedded:tiny-tools")):
        folder = project / "launcher_record" / "x" / "debug" / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({**row, "model": model, "debug/seconds": 40.0}) + "\n")
    said = planned(capsys)
    assert "a step: about 20 s to 40 s to run 8 episodes (at 20 tokens per second with 4 at the same time)" in said
    rows = "".join(json.dumps({"step": n, "seconds/step": 3.0 + n}) + "\n" for n in (1, 2, 3))
    (project / "launcher_record" / "x" / "metrics.jsonl").write_text(rows)
    assert "about 5.0 s per step, as in the last steps of the" in planned(capsys)


def test_what_cannot_work_is_in_the_plan(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "agent.py").write_text("async def agent(task, tuner):\n    return 'an answer'\n")
    said = planned(capsys, "--exp-dir", "x.yaml", "rollout.num_repeat=1")
    assert "ajet.experiment_dir" in said and "x.yaml is a file, not a folder" in said
    assert "ajet.rollout.num_repeat" in said


@pytest.mark.slow
def test_a_rehearsal_is_said_with_its_seconds_and_peak(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment: Experiment = load_experiment("x.yaml", backbone="local")
    backbone = LocalBackbone(experiment)
    told: list[str] = []
    sink = logger.add(told.append, format="{message}", level="INFO")
    try:
        footprint.rehearse_update(experiment, backbone)
        monkeypatch.setattr(footprint, "explain_no_rehearsal", lambda *_, **__: "")
        footprint.rehearse_update(experiment, backbone)
    finally:
        logger.remove(sink)
        backbone.close()
    first, second, third = told
    assert first.startswith("no trial update before step 1: training needs about") and "are free" in first
    assert "a pass over 1,440 tokens (--no-rehearsal" in second
    assert third.startswith("the trial update took ") and "of memory" in third
    assert backbone.version == 0


@pytest.mark.extra_slow
def test_rubrics_that_have_yet_to_be_made_are_in_the_plan_with_their_calls(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "labelled.jsonl").write_text('{"query": "q", "answer": "a", "score": 1}\n' * 3)
    section = "{jsonl_dataset_file: {training: {file_path: labelled.jsonl}}, enable_categorization: true}"
    with judge_server(lambda asked: "") as server:
        judges = f"[{{model: m, base_url: '{server.url}'}}]"
        judge = f"{{judge_type: rubrics_auto_grader, rubrics_auto_grader: {section}, judges: {judges}}}"
        (project / "x.yaml").write_text(f"{YAML}  task_judge: {judge}\n")
        said = planned(capsys)
        assert (
            "judge rubrics auto_grader (pointwise), by m: to be written from 3 examples with at most 34 calls" in said
        )
        assert not server.seen and not list(project.rglob("*auto_grader*"))


QWEN = (
    '{"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, '
    '"num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": false}'
)
ON_GPUS = ("trainer_common.n_gpus_per_node=8", "trainer_common.gradient_checkpointing=true", "model.dtype=auto")
ON_GPUS += ("trainer_common.device=cuda", "data.train_batch_size=64", "rollout.max_model_len=2048")


@pytest.mark.slow
@without_verl
def test_a_config_json_alone_is_planned_on_gpus(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "big").mkdir()
    (project / "big" / "config.json").write_text(QWEN)
    verl = ("--backbone", "verl", "model.path=./big", *ON_GPUS)
    said = planned(capsys, *verl)
    assert "not measured, on each of 8 × H100" in said and "optimizer 7.1 GiB" in said and "431,937 tokens" in said
    assert "25% to 50% of 989 TFLOP/s" in said
    assert "312 TFLOP/s" in planned(capsys, *verl, "--gpu", "A100")
    assert "optimizer 56.7 GiB" in planned(capsys, "--backbone", "local", "model.path=./big")
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "x.yaml", "--dry-run", *verl])
    assert ended.value.code == 2 and "big" in capsys.readouterr().err, "a launch needs its tokenizer"


@pytest.mark.slow
@without_verl
def test_a_name_with_a_size_is_planned_without_the_hub(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = planned(capsys, "--backbone", "verl", "model.path=Qwen/Qwen2.5-7B-Instruct", *ON_GPUS)
    assert "optimizer 6.5 GiB" in said and "activations" in said and "HF_HUB_OFFLINE" in said
    for unknown in ("Qwen/Qwen-Instruct", "./Qwen2.5-7B-Instruct"):
        with pytest.raises(SystemExit) as ended:
            launcher.main(["plan", "--conf", "x.yaml", "--backbone", "verl", f"model.path={unknown}", *ON_GPUS])
        assert ended.value.code == 2 and unknown in capsys.readouterr().err


SGLANG = """ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->agent, max_model_len: 200, name: sglang}
  data: {train_batch_size: 8, max_prompt_length: 100, max_response_length: 80}
"""


@pytest.mark.slow
@without_verl
@pytest.mark.parametrize("gpu", ["", "NVIDIA H200"])
def test_estimates_are_for_the_device_of_the_run(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gpu: str
) -> None:
    (project / "x.yaml").write_text(SGLANG)
    row = f"81559, 4, 9.0, {gpu}" if gpu else ""
    (project / "nvidia-smi").write_text(f'#!/bin/sh\necho "{row}"\n')
    (project / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}:/usr/bin:/bin")
    assert "on each of 8 × A100" in planned(capsys, "--backbone", "verl", "--gpu", "A100"), "a plan is for that GPU"
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "x.yaml", "--backbone", "verl", "--dry-run"])
    said = capsys.readouterr()
    if gpu:
        assert ended.value.code == 0 and "8 × H200" in said.out and "0.0 s" not in said.out
        return
    assert ended.value.code == 2 and "x.yaml:4" in said.err
    assert "trainer_common.device=cuda" in said.err and "ajet plan --gpu" in said.err
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "x.yaml", "--backbone", "verl", "--dry-run", "rollout.name=vllm"])
    said = capsys.readouterr()
    assert ended.value.code == 0 and "H100" not in said.out and "s a step" not in said.out


@pytest.mark.slow
@without_verl
def test_the_command_of_a_plan_on_verl_starts_ray(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "--backbone verl --with-ray" in planned(capsys, "--backbone", "verl", "trainer_common.device=cuda")
    assert "--with-ray" not in planned(capsys, "--backbone", "local")


@pytest.mark.parametrize(
    ("settings", "steps", "further"),
    [
        (
            ("trainer_common.total_training_steps=null", "trainer_common.total_epochs=3", "data.train_batch_size=16"),
            8,
            8,
        ),
        (
            ("trainer_common.total_training_steps=null", "trainer_common.total_epochs=2", "data.train_batch_size=8"),
            10,
            0,
        ),
        (("trainer_common.total_training_steps=3", "data.train_batch_size=16"), 3, 0),
    ],
)
def test_a_plan_says_how_many_steps(
    project: Path, capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], steps: int, further: int
) -> None:
    rows = "".join(json.dumps({"question": f"{number}?", "answer": "1"}) + "\n" for number in range(40))
    (project / "rows.jsonl").write_text(rows)
    reader = ("task_reader.type=jsonl_dataset_file", "task_reader.jsonl_dataset_file.training.file_path=rows.jsonl")
    said = planned(capsys, "--backbone", "local", *reader, *settings)
    assert f" steps {steps}, " in said and (f"by {further} " in said) == bool(further)


def test_validate_compares_the_batch_with_the_tasks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "rows.jsonl").write_text('{"question": "1?"}\n' * 5)
    reader = ("task_reader.type=jsonl_dataset_file", "task_reader.jsonl_dataset_file.training.file_path=rows.jsonl")
    for batch, named in (("6", True), ("5", False)):
        with pytest.raises(SystemExit) as ended:
            launcher.main(
                [
                    "config",
                    "validate",
                    "--conf",
                    "x.yaml",
                    "--backbone",
                    "local",
                    *reader,
                    f"data.train_batch_size={batch}",
                ]
            )
        assert ended.value.code == 0
        assert ("ajet.data.train_batch_size (" in capsys.readouterr().out) == named
