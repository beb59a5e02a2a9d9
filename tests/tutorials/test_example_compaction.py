"""The compaction tutorial: its histories fork as compaction, its ways train what they name, and it learns."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.context_tracker import timelines
from ajet.schema.call import Call
from ajet.schema.task import WorkflowTask
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_compaction"
CONFIG = SimpleNamespace(compaction=SimpleNamespace(limit=110))
"""The limit of tokens after which the scene's template and tokenizer have two notes."""


def play(agent: str, *script: str) -> tuple[Any, list[Call]]:
    """Return the output and the calls of an episode of the first held-out task."""
    workflow = resolve_reference(f"agent.py->{agent}", base=FOLDER)()
    task = resolve_reference("notes.py->Notes", base=FOLDER)(None).tasks("validation")[0]
    code = task.metadata["code"]
    words = [text.replace("HALF", code[:2]).replace("CODE", code) for text in script]
    with scene(*words, config=CONFIG, trainable=workflow.trainable_targets) as played:
        output = asyncio.run(workflow.execute(WorkflowTask(task=task), played.tuner))
        return output, played.session.close().calls


SCRIPT = ("next", "next", "next", "HALF", "next", "next", "CODE", "CODE")


def test_a_summary_opens_a_counted_history() -> None:
    output, calls = play("Reader", *SCRIPT)
    assert (output.reward, output.log_metrics) == (1.0, {"summaries": 2, "summaries_right": 1.0})
    assert [call.fork for call in calls] == [None] * 4 + ["compaction"] + [None] * 2 + ["compaction"]
    found, untrained = timelines(calls)
    assert len(found) == 3 and not untrained
    assert sum(timeline.sampled for timeline in found) == sum(call.response_ids.size for call in calls)


def test_untrained_summaries_are_counted() -> None:
    _, calls = play("ReaderOfUntrainedSummaries", *SCRIPT)
    assert [call.trained for call in calls] == [True] * 3 + [False] + [True] * 2 + [False, True]
    _, untrained = timelines(calls)
    assert untrained == {"not_trainable": sum(calls[at].response_ids.size for at in (3, 6))}


def test_without_summaries_old_notes_are_dropped() -> None:
    output, calls = play("ReaderWithoutSummaries", *["next"] * 5, "CODE")
    assert output.reward == 1.0 and not any(call.fork for call in calls)
    found, untrained = timelines(calls)
    assert len(found) == 4 and not untrained, "each request with dropped notes continues the first call"


def test_a_wrong_code_earns_nothing() -> None:
    output, _ = play("Reader", "next", "next", "next", "HALF", "next", "next", "none", "none")
    assert (output.reward, output.log_metrics["summaries_right"]) == (0.0, 0.5)


def test_both_yamls_are_valid() -> None:
    for name in ("sft.yaml", "compaction.yaml"):
        load_experiment(FOLDER / name, overrides=["model.path=embedded:tiny-tools"]).require_ready()


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_it_learns_to_summarise(tmp_path: Path) -> None:
    prints(FOLDER / "notes.py", tmp_path / "demonstrations.jsonl")
    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), "reader"], check=True, cwd=tmp_path, timeout=120)
    steps = ["trainer_common.total_training_steps=32", "trainer_common.test_freq=32"]  # 20 were enough
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, _ = learned(FOLDER / "compaction.yaml", tmp_path, "compaction", model, *steps)
    assert held_out[-1] > held_out[0] + 0.15, held_out
