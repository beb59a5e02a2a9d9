"""The quickstart and its notebook: held-out mails are new in each word that matters, the agent learns to look up."""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from ajet.commands.tune_defaults import ON_CPU, RATES
from ajet.config import load_experiment
from ajet.task_reader import open_reader
from tests.support.ajet_process import ajet, metric_rows

ROOT = Path(__file__).parents[2]
YAML = ROOT / "tutorial" / "quickstart" / "quickstart.yaml"
NOTEBOOK = YAML.with_suffix(".ipynb")


def test_held_out_mails_share_nothing_with_training():
    reader = open_reader(load_experiment(YAML))
    train, held_out = list(reader.tasks("train")), list(reader.tasks("validation"))
    assert (len(train), len(held_out)) == (512, 64)
    orders, phrasings = defaultdict(set), defaultdict(set)
    for split, tasks in (("train", train), ("validation", held_out)):
        for task in tasks:
            assert task.metadata["order"] in task.main_query
            orders[split].add(task.metadata["order"])
            phrasings[split].add(tuple(re.findall(r"[A-Za-z]+", task.main_query)))
    assert orders["train"].isdisjoint(orders["validation"])
    assert phrasings["train"].isdisjoint(phrasings["validation"])


@pytest.mark.extra_slow
def test_the_agent_learns_to_look_orders_up(tmp_path):
    settings = ["experiment_name=learns", "seed=3", "trainer_common.save_freq=1000"]
    done = ajet(
        "--conf", str(YAML), "--backbone", "local", "--exp-dir", str(tmp_path), *settings, cwd=tmp_path, timeout=1500
    )
    assert done.returncode == 0, done.stdout
    held_out = [row["validation/reward"] for row in metric_rows(tmp_path / "learns") if "validation/reward" in row]
    assert held_out[0] <= 0.3 and held_out[-1] >= 0.9, held_out


def test_the_notebook_uses_public_names_only():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) < 15 and all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in code))
    public = set(re.findall(r"^[\w.]+", (ROOT / "docs" / "public_surface.txt").read_text(), re.M))
    objects = {
        "ajet": "ajet", "run": "ajet.record.RecordedRun", "tuned": "Tuned", "tuner": "ajet.ModelTuner",
        "task": "ajet.Task", "output": "ajet.WorkflowOutput",
    }  # fmt: skip
    chains = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = [chain.split(".") for chain in chains if re.fullmatch(r"[\w.]+", chain)]
    used = {".".join([objects[first], *rest]) for first, *rest in names if first in objects} - {"ajet.record"}
    assert len(used) > 10 and used <= public, used - public


def test_the_notebook_trains_with_the_settings_of_the_yaml():
    source = "\n".join("".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"])
    given = ast.literal_eval(re.findall(r"^settings = (\{.*?^\})", source, re.M | re.S)[0])
    experiment = load_experiment(YAML)
    settings = {**ON_CPU, "trainer_common.optim.lr": RATES[0][1], "trainer_common.total_training_steps": 8, **given}
    for key, value in settings.items():
        found = experiment.ajet
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value, key


@pytest.mark.extra_slow
def test_the_notebook_shows_an_agent_that_learns(tmp_path):
    """The fast test of its cells is test_the_notebook_uses_public_names_only."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(book, timeout=1500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {cell["id"]: cell.outputs for cell in book.cells if cell.cell_type == "code"}
    printed = "".join(output.get("text", "") for output in outputs["before"])
    before, after = (int(percent) for percent in re.findall(r"(\d+)% of the held-out", printed))
    assert before <= 30 and after >= 90
    assert any("image/png" in output.get("data", {}) for output in outputs["curve"])
    (tokens,) = (output["data"]["text/html"] for output in outputs["tokens"] if "data" in output)
    assert 'gray">MA<' in tokens and re.search(r"rgba[^>]+>LO<", tokens)  # MAIL is context, LOOKUP was sampled
