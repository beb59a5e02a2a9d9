"""`ajet export`: checkpoints of both backbones as folders that transformers and our own loader take, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ajet.cli import launcher
from ajet.commands.export import export
from ajet.record.checkpoints import Checkpoints
from ajet.record.episodes import read_recorded
from ajet.record.resume import RunIdentity
from ajet.schema.call import full_ids
from ajet.schema.errors import UserError
from tests.support.verl_fixtures import without_verl


@pytest.fixture(scope="module")
def record(tool_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of the local backbone, `tool`, has saved steps 1 and 2."""
    folder = tmp_path_factory.mktemp("local") / "launcher_record"
    shutil.copytree(tool_project / "launcher_record" / "plain", folder / "tool")
    return folder


@pytest.mark.slow
def test_a_local_runs_checkpoint_is_copied_without_the_trainers_state(record, tmp_path):
    folder = export("tool", record, step=1, out=tmp_path / "model")
    saved = record / "tool" / "checkpoints" / "step-1"
    names = {path.name for path in folder.iterdir()}
    card = (folder / "model_card.md").read_text()
    assert "trained by ajet" in card and "# tool, step 1" in card
    names.remove("model_card.md")
    assert names == {path.name for path in saved.iterdir()} - {"trainer", "state.json"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert all((folder / name).read_bytes() == (saved / name).read_bytes() for name in names)
    assert (folder / "model.safetensors").stat().st_ino != (saved / "model.safetensors").stat().st_ino
    assert loads(folder).keys() == load_file(folder / "model.safetensors").keys() | {"lm_head.weight"}


@pytest.mark.slow
def test_the_command_names_the_folder_and_takes_the_last_step(record, capsys):
    folder = record / "tool" / "exports" / "step-2"
    with pytest.raises(SystemExit) as ended:
        launcher.main(["export", "tool", "--exp-dir", str(record)])
    assert not ended.value.code and capsys.readouterr().out.splitlines()[-1] == f"Use it:  model.path={folder}"
    saved = record / "tool" / "checkpoints" / "step-2" / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == saved.read_bytes()
    assert "exists already" in refused(capsys, str(record / "tool"))


def checked(capsys: pytest.CaptureFixture[str], record: Path, *more: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        launcher.main(["export", "tool", "--step", "2", "--check", "--exp-dir", str(record), *more])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_is_held_to_what_the_run_sampled(record, tmp_path, capsys):
    """As it is, it passes; with another template, other end tokens or other weights it does not, and is said why."""
    out = tmp_path / "checked"
    code, said = checked(capsys, record, "--out", str(out), "--at-most", "8")
    assert code == 0 and "8 of 8 prompts equal" in said and "8 of 8 greedy replies equal" in said, said
    assert "behaves as the run's model" in said

    template = (out / "chat_template.jinja").read_text()
    (out / "chat_template.jinja").write_text("Beware. " + template)
    code, said = checked(capsys, record, "--out", str(out), "--at-most", "2")
    assert code == 1 and "0 of 2 prompts equal" in said and "differs at token 0: 'Beware" in said, said
    (out / "chat_template.jinja").write_text(template)

    settings = json.loads((out / "generation_config.json").read_text())
    (out / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 5}))
    code, said = checked(capsys, record, "--out", str(out), "--at-most", "2")
    assert code == 1 and "ended at a token that generation_config.json does not list" in said, said
    (out / "generation_config.json").write_text(json.dumps(settings))

    weights = load_file(out / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    weights[name] = torch.zeros_like(weights[name])  # as a merge that lost one
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    code, said = checked(capsys, record, "--out", str(out), "--at-most", "8")
    assert code == 1 and "nats, the limit is" in said and "✗" in said, said


@pytest.mark.slow
def test_nothing_recorded_with_the_weights_is_no_check(record, tmp_path, capsys):
    shutil.copytree(record / "tool", tmp_path / "tool", ignore=shutil.ignore_patterns("step-2.validation*"))
    with pytest.raises(SystemExit) as ended:
        launcher.main(["export", "tool", "--check", "--exp-dir", str(tmp_path)])
    assert ended.value.code == 2 and "no replies of the weights of step 2" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluations_below_the_yamls_name_are_found(record, tool_project, tmp_path, monkeypatch, capsys):
    """`ajet eval tool.yaml --model RUN` records below the YAML's name: card and check find it by the digest."""
    root = tmp_path / "launcher_record"
    shutil.copytree(record / "tool", root / "moved", ignore=shutil.ignore_patterns("*.validation*", "eval"))
    yaml = next((tool_project / "tool").glob("*.yaml"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        models = ("--model", "base", "--model", str(root / "moved"), "--at-most", "2")
        launcher.main(["eval", str(yaml), "--exp-dir", str(root), *models])
    assert not ended.value.code, capsys.readouterr()
    (place,) = root.glob("*/eval")
    assert place.parent.name != "moved"
    (root / "moved").rename(root / "again")
    with pytest.raises(SystemExit) as ended:
        launcher.main(["export", "again", "--step", "2", "--check", "--exp-dir", str(root), "--out", "out"])
    said = capsys.readouterr().out
    assert not ended.value.code and "2 of 2 prompts equal" in said and f"{place.parent.name}/eval/" in said, said
    section = Path("out/model_card.md").read_text().split("## Evaluation")[1].split("##")[0]
    lines = section.strip().splitlines()
    assert len(lines) == 2 and "base: " in lines[0] and "tasks 2" in lines[1], lines
    assert all(f"{place.parent.name}/eval/" in line for line in lines)


@pytest.mark.slow
def test_chat_takes_a_checkpoints_folder(record, capsys):
    place = record / "tool" / "checkpoints" / "step-1"
    with pytest.raises(SystemExit) as ended:
        launcher.main(["chat", str(place), "--prompt", "hi", "--exp-dir", str(record)])
    said = capsys.readouterr().out
    assert not ended.value.code and str(place) in said and "model: " in said, said


def loads(folder: Path) -> dict[str, torch.Tensor]:
    """The weights as transformers and our own loader find them; the two agree."""
    from transformers import AutoModelForCausalLM

    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_model, load_tokenizer

    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    source = locate_model(str(folder))
    ours = load_model(source, dtype=model.dtype).state_dict()
    assert ours.keys() == model.state_dict().keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in model.state_dict().items())
    assert load_tokenizer(source).apply_chat_template([{"role": "user", "content": "1+1"}], tokenize=False)
    return ours


# verl

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """KIND/actor and KIND/source.safetensors of each kind, by verl's own manager in two processes."""
    folder = tmp_path_factory.mktemp("verl")
    command = [sys.executable, "-W", "ignore", "-m", "tests.contract.verl_checkpoints"]
    root = Path(__file__).parents[2]
    log = (folder / "log").open("w")
    own = {**os.environ, "TMPDIR": str(folder)}  # verl's lock files: two processes race to remove them
    done = subprocess.run([*command, str(folder)], cwd=root, stdout=log, stderr=log, timeout=300, env=own)
    assert done.returncode == 0, (folder / "log").read_text()
    yield folder


def run_with(root: Path, actor: Path, step: int = 3) -> Path:
    """A run's folder, as the verl backbone leaves it, with this checkpoint."""
    run = root / "trained"
    run.mkdir(parents=True, exist_ok=True)
    RunIdentity("x", "verl", {}).write(run)

    def write(into: Path) -> None:
        shutil.copytree(actor, into / f"global_step_{step}" / "actor")

    Checkpoints(run / "checkpoints").save(step, write, {"verl": f"global_step_{step}"})
    return run


@without_verl
@pytest.mark.slow
@pytest.mark.parametrize("kind, dtype", [("fsdp2", "float32"), ("fsdp1", "float32"), ("single", "bfloat16")])
def test_shards_make_the_tensors_that_the_processes_held(saved, tmp_path, kind, dtype):
    run_with(tmp_path, saved / kind / "actor")
    folder = export("trained", tmp_path)
    assert folder == tmp_path / "trained" / "exports" / "step-3"
    told, source = json.loads((folder / "config.json").read_text()), load_file(saved / kind / "source.safetensors")
    assert told["dtype"] == dtype
    written = load_file(folder / "model.safetensors")
    left_out = {"lm_head.weight"} if told["tie_word_embeddings"] else set()
    assert written.keys() == source.keys() - left_out and len(source) > 20
    found = loads(folder)
    for name, tensor in source.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype == getattr(torch, dtype), name


EVALUATED = """
ajet:
  model: {path: "embedded:tiny-tools", dtype: float32}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {validation: {file_path: rows.jsonl}}}
  rollout: {user_workflow: agent.py->agent, max_response_length_in_one_turn: 4, max_model_len: 256}
"""
AGENT = """
async def agent(task, tuner):
    ask = [{"role": "user", "content": task.main_query}]
    await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=ask)
    return float(task.metadata["number"])
"""


@without_verl
@pytest.mark.slow
def test_a_checkpoint_of_verl_is_evaluated_as_it_is(saved, tmp_path, monkeypatch, capsys):
    """Named as any other; what its shards make is kept, and is the model that answers."""
    from transformers import AutoModelForCausalLM

    run = run_with(tmp_path, saved / "fsdp2" / "actor")
    (tmp_path / "x.yaml").write_text(EVALUATED)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"question": "Say {n}", "number": {n}}}\n' for n in (0, 1)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        launcher.main(["eval", "x.yaml", "--model", str(run / "checkpoints" / "step-3"), "--json"])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.out + printed.err
    (evaluated,) = json.loads(printed.out)["models"]
    folder, made = Path(evaluated["record"]), run / "exports" / "step-3"
    episodes = [episode for episode, _ in read_recorded(folder / "episodes" / "step-3.validation.jsonl")]
    assert sorted((each.status, each.reward) for each in episodes) == [("completed", 0), ("completed", 1)]
    model = AutoModelForCausalLM.from_pretrained(made)
    shards = load_file(saved / "fsdp2" / "source.safetensors")
    assert all(torch.equal(tensor, shards[name]) for name, tensor in model.state_dict().items())
    for calls in (each.calls for each in episodes):
        likeliest = model(torch.from_numpy(full_ids(calls, 0))[None].long()).logits[0].argmax(-1).tolist()
        drawn = calls[0].response_ids.tolist()
        assert len(calls) == 1 and drawn and likeliest[-1 - len(drawn) : -1] == drawn


@without_verl
@pytest.mark.slow
def test_adapters_are_added_into_the_weights(saved, tmp_path):
    run_with(tmp_path, saved / "lora" / "actor")
    found = loads(export("trained", tmp_path))
    source = load_file(saved / "lora" / "source.safetensors")
    changed = 0
    for name, tensor in found.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.base_layer.weight" not in source:
            assert torch.equal(tensor, source[f"base_model.model.{name}"]), name
            continue
        a, b = (source[f"{module}.lora_{each}.default.weight"] for each in "AB")
        expected = source[f"{module}.base_layer.weight"] + 6 / 4 * b @ a
        assert torch.allclose(tensor, expected, atol=1e-6) and not torch.equal(
            tensor, source[f"{module}.base_layer.weight"]
        )
        changed += 1
    assert changed == 4


@without_verl
@pytest.mark.slow
def test_large_models_take_several_files_and_another_number_format_on_demand(saved, tmp_path):
    from ajet_ray.merge import merge_checkpoint

    merge_checkpoint(saved / "fsdp2" / "actor", tmp_path, dtype="bfloat16", file_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == {file.name for file in files}
    source = load_file(saved / "fsdp2" / "source.safetensors")
    for name, tensor in loads(tmp_path).items():
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, source[name].bfloat16()), name


@without_verl
@pytest.mark.slow
@pytest.mark.parametrize(
    "harm",
    [
        lambda actor: (actor / "model_world_size_2_rank_1.pt").unlink(),
        lambda actor: os.truncate(actor / "model_world_size_2_rank_1.pt", 5000),
        lambda actor: (actor / "fsdp_config.json").unlink(),
        lambda actor: (actor / "huggingface" / "config.json").unlink(),
    ],
    ids=["shard gone", "shard cut short", "no fsdp_config", "no config"],
)
def test_a_folder_that_lacks_something_is_refused_and_nothing_is_left(saved, tmp_path, harm):
    actor = shutil.copytree(saved / "fsdp2" / "actor", tmp_path / "actor")
    harm(actor)
    run = run_with(tmp_path, actor)
    with pytest.raises(UserError, match="is incomplete"):
        export("trained", tmp_path)
    assert not list((run / "exports").iterdir())


@without_verl
@pytest.mark.slow
def test_shards_of_two_checkpoints_are_refused(saved, tmp_path):
    actor = shutil.copytree(saved / "fsdp2" / "actor", tmp_path / "actor")
    shutil.copy(saved / "lora" / "actor" / "model_world_size_2_rank_1.pt", actor)
    run_with(tmp_path, actor)
    with pytest.raises(UserError):
        export("trained", tmp_path)


# Runs and steps that are not there.


def refused(capsys: Any, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        launcher.main(["export", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_is_not_there_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    root = ("--exp-dir", str(tmp_path))
    assert "There is no run named nothing" in refused(capsys, "nothing", *root)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text("{}")
    assert "has no complete checkpoint" in refused(capsys, "r", *root)
    checkpoints = Checkpoints(tmp_path / "r" / "checkpoints", keep=5)
    for step in (2, 4, 6):
        checkpoints.save(step, lambda into: (into / "config.json").write_text("{}"), {})
    said = refused(capsys, "r", "--step", "3", *root)
    assert "There is no checkpoint of step 3" in said and "2, 4, 6" in said
    (tmp_path / "r" / "checkpoints" / "step-4" / "config.json").write_text("")
    said = refused(capsys, "r", "--step", "4", *root)
    assert "step-4 is damaged: config.json has 0 bytes, expected 2" in said and "undamaged one: step-2, step-6" in said
    assert "copied as it is" in refused(capsys, "r", "--dtype", "bfloat16", *root)
    assert not list((tmp_path / "r" / "exports").iterdir())


def test_checkpoints_kept_elsewhere_are_found(tmp_path):
    run = tmp_path / "record" / "r"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "resolved.yaml").write_text(f"ajet: {{trainer_common: {{checkpoint_base_dir: {tmp_path / 'far'}}}}}\n")
    Checkpoints(tmp_path / "far" / "r").save(7, lambda into: (into / "config.json").write_text("{}"), {})
    assert (export("r", tmp_path / "record") / "config.json").read_text() == "{}"
