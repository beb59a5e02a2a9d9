"""What AgentJetJob starts besides a training: a plan, a debug run, a lesson; and a training from what was learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet import AgentJetJob
from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from tests.support.runs import metric_rows

AGENT = """
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    reply = await client.chat.completions.create(messages=[{"role": "user", "content": task.main_query}])
    return float(len(reply.choices[0].message.content or "") % 3)
"""
ROWS = [{"messages": [{"role": "user", "content": f"What does {name} cost?"},
                      {"role": "assistant", "content": f"\\boxed{{{at}}}"}]}
        for at, name in enumerate(("eel", "ham", "jam", "fig"))]  # fmt: skip


def job(**more) -> AgentJetJob:
    small = {"max_model_len": 200, "max_response_length_in_one_turn": 8, "batch_size": 2, "num_repeat": 2, "n_gpu": 0}
    made = AgentJetJob(**{"model": "embedded:tiny-tools", "name": "small", **small, **more})
    made.set_workflow("agent.py->agent").set_data("jsonl", "tasks.jsonl")
    return made.set(trainer_common__threads=1, trainer_common__total_training_steps=1, data__max_prompt_length=100)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1?"}\n{"question": "1+2?"}\n')
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.extra_slow
def test_a_plan_a_debug_run_a_lesson_and_a_training_from_it(project, capsys):
    """The fast ones are below, and test_job.py and test_job_arguments.py, which compare what is composed."""
    begun = job()
    begun.plan()
    assert "Nothing was started." in capsys.readouterr().out and not (project / "launcher_record").exists()

    played = begun.debug()
    assert played.parent == project / "launcher_record" / "small" / "debug"
    assert len(EpisodeFiles(played / "episodes").read(0, "debug")) == 4 and begun.backbone == "local"

    taught = begun.sft("rows.jsonl", validation=["rows.jsonl"])
    assert taught.path == project / "launcher_record" / "small_sft" and taught.rewards == []
    assert begun.experiment().ajet.sft.objective is None
    (row,) = [row for row in metric_rows(taught.path) if "train/rows" in row]
    assert row["train/rows"] == 2

    trained = job(model=str(taught.checkpoint)).tune(rehearsal=False)
    assert trained == project / "launcher_record" / "small"
    assert [row["step"] for row in metric_rows(trained) if "train/reward" in row] == [1]


def test_flags_that_cannot_be_are_said_as_the_command_says_them(project):
    with pytest.raises(UserError, match="nowhere"):
        job().tune(resume="nowhere")
    with pytest.raises(UserError, match="nothere"):
        job().debug(services=["nothere"])
    with pytest.raises(UserError, match="sft.train_files"):
        job().sft()
    with pytest.raises(UserError, match="backbone"):
        job().plan(backbone="vrl")
