"""The pages for those who come from verl, TRL and verifiers: their files work before and after, their keys exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.config.keys import list_dotted_keys
from ajet.schema.errors import ConfigError, UserError
from ajet_trl.processor import require_trl
from ajet_verifiers.settings import VerifiersSettings
from tests.docs.snippets import ROOT, blocks
from tests.support.ajet_process import metric_rows

DOCS = ROOT / "docs"
TRLS_MODEL, TINY = "Qwen/Qwen2.5-0.5B-Instruct", "embedded:tiny-tools"


def test_the_page_shows_the_lines_that_validate_prints(tmp_path: Path) -> None:
    page = (DOCS / "coming_from_verl.md").read_text()
    plain, lines = re.findall(r"```text\n(.*?)```", page, re.S)
    (tmp_path / "verl_grpo.yaml").write_text(plain)
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "verl_grpo.yaml").require_ready()
    assert lines.strip() in caught.value.do
    (tmp_path / "verl_grpo.yaml").write_text(lines + plain)
    load_experiment(tmp_path / "verl_grpo.yaml").require_ready()


@pytest.mark.parametrize("page", ["reference/verl_keys.md", "coming_from_trl.md", "coming_from_verifiers.md"])
def test_keys_of_the_pages_are_keys_of_the_schema(page: str) -> None:
    text = (DOCS / page).read_text()
    assert len(re.sub(r"^\|.*$", "", text, flags=re.M).split()) <= 1200
    known, roots = {*list_dotted_keys()}, {key.split(".")[0] for key in list_dotted_keys()}
    last = [
        line.strip("| ").split(" | ", 1)[1] for line in text.splitlines() if line.startswith("| ") and " | " in line
    ]
    named = {key for cell in last for key in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)\b", cell)}
    named = {key for key in named if key.split(".")[0] in roots}
    assert len(named) > 8 and named <= known, named - known


def test_the_yaml_for_verifiers_is_ready(tmp_path: Path) -> None:
    (given,) = (each for each in blocks(DOCS / "coming_from_verifiers.md") if each.language == "yaml")
    (tmp_path / given.title).write_text(given.text)
    experiment = load_experiment(tmp_path / given.title)
    experiment.require_ready()
    assert VerifiersSettings.read(experiment.config).taskset == "sums"
    before = (DOCS / "coming_from_verifiers.md").read_text().split("```text")[1]
    batch, group = (int(re.findall(rf"{name} = (\d+)", before)[0]) for name in ("batch_size", "group_size"))
    settings = experiment.ajet
    assert (settings.rollout.num_repeat, settings.data.train_batch_size) == (group, batch // group)


@pytest.mark.slow
def test_the_script_for_trl_trains(tmp_path: Path) -> None:
    run_script("tune.py", tmp_path, {TRLS_MODEL: TINY, "steps=20": "steps=1"})
    (row,) = metric_rows(tmp_path / "launcher_record" / "tune")
    assert row["train/scored"] == 64 and 0 <= row["train/reward"] <= 1


@pytest.mark.extra_slow
def test_the_script_of_trl_trains_too(tmp_path: Path) -> None:
    """The fast test of the page is test_the_script_for_trl_trains."""
    try:
        trl = require_trl()
    except UserError as missing:
        pytest.skip(str(missing))
    run_script("tune.py", tmp_path, {TRLS_MODEL: TINY, "steps=20": "steps=1"})
    (model,) = (tmp_path / "launcher_record" / "tune" / "checkpoints").iterdir()
    changes = {TRLS_MODEL: str(model), "max_steps=20": "max_steps=1, use_cpu=True, report_to='none'"}
    printed = run_script("grpo.py", tmp_path, changes, PYTHONPATH=str(trl or ""))
    assert "train_loss" in printed


def run_script(name: str, folder: Path, changes: dict[str, str], **variables: str) -> str:
    """Run the script of this title on TRL's page, with other words in it, and return what it printed."""
    (text,) = (each.text for each in blocks(DOCS / "coming_from_trl.md") if each.title == name)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, name], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
