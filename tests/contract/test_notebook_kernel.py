"""A notebook that tunes a model, executed cell by cell in a kernel of its own, as Jupyter would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

AGENT = """
import ajet

async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    reply = await client.chat.completions.create(messages=[{"role": "user", "content": task.main_query}])
    return float(len(reply.choices[0].message.content or "") % 3)
"""
TUNE = """
settings = {"rollout.num_repeat": 2, "data.train_batch_size": 1, "rollout.max_model_len": 200,
            "rollout.max_response_length_in_one_turn": 8, "trainer_common.threads": 1}
tuned = ajet.tune(agent=agent, tasks=["1+1?", "1+2?"], model="embedded:tiny-tools", steps=STEPS, settings=settings)
"""
JOB = """
job = ajet.AgentJetJob(model="embedded:tiny-tools", num_repeat=1, max_model_len=200, max_response_length_in_one_turn=8)
played = job.set_workflow(agent).set_data("dummy").set(debug__debug_first_n_tasks=1, trainer_common__threads=1).debug()
print(played.parent)
"""


@pytest.mark.extra_slow
def test_the_picture_is_in_the_cell_that_tunes_and_is_one(tmp_path: Path) -> None:
    """And in the next cell again, from where the run stood: one picture a cell, of the last step at its end. The fast
    test is test_notebook_curve.py, which has IPython without a kernel."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [AGENT, TUNE.replace("STEPS", "2"), TUNE.replace("STEPS", "3"), "print(tuned.path)", JOB]
    book = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    client = NotebookClient(book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    (first,), (second,) = (pictures(cell) for cell in book.cells[1:3])
    assert "<b>tune · step 2 of 2" in first and "<b>tune · step 3 of 3" in second
    assert all("<polyline" in each and "training reward" in each for each in (first, second))
    assert "step    2/2  reward" in first and "step    2/2  reward" in said(book.cells[1])
    assert not pictures(book.cells[0]) and said(book.cells[3]).strip() == str(tmp_path / "launcher_record" / "tune")
    assert said(book.cells[4]).endswith(f"{tmp_path / 'launcher_record' / 'ajet_job' / 'debug'}\n")
    rows = [json.loads(line) for line in (tmp_path / "launcher_record/tune/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/reward" in row] == [1, 2, 3]


def pictures(cell: Any) -> list[str]:
    """The HTML of a cell's outputs, as they stand at its end."""
    shown = [output["data"]["text/html"] for output in cell.outputs if output.output_type == "display_data"]
    return ["".join(each) for each in shown if "<svg" in "".join(each)]


def said(cell: Any) -> str:
    """What was printed; rich shows its lines as HTML with the text beside it."""
    shown = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join("".join(each) for each in shown)
