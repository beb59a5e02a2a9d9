"""In a notebook a run draws one picture, anew at each step; elsewhere none."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.dom.minidom import parseString

import pytest

from ajet.commands.progress import TrainingProgress
from ajet.config import Experiment
from ajet.record.curve import MetricCurve, notebook_cell, render_svg

pytest.importorskip("IPython")


@pytest.fixture
def published() -> Iterator[list[Any]]:
    """What a notebook's cell is sent: IPython itself, with a publisher that keeps it."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.display_pub = CapturingDisplayPublisher(parent=shell)
    yield shell.display_pub.outputs
    InteractiveShell.clear_instance()


def shown(published: list[Any]) -> str:
    (place,) = {each["transient"]["display_id"] for each in published}
    assert [each.get("update", False) for each in published] == [False, *[True] * (len(published) - 1)], place
    return published[-1]["data"]["text/html"]


def test_a_run_draws_one_picture_and_goes_on_with_it(published: list[Any], tmp_path: Path) -> None:
    earlier = {"step": 1, "train/reward": 0.25, "train/scored": 8, "train/episodes": 8}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(earlier) + "\n")
    experiment = Experiment.from_dict({"ajet": {"experiment_name": "a<b"}}, base=tmp_path)
    progress = TrainingProgress(experiment, SimpleNamespace(path=tmp_path))  # type: ignore[arg-type]
    assert "a&lt;b · step 1" in shown(published) and "a<b" not in shown(published)
    times = {"seconds/step": 1.0, "seconds/rollout": 0.5, "seconds/update": 0.5}
    progress.on_step(2, 20, {"train/reward": 0.75, "train/scored": 8, "train/episodes": 8, **times})
    progress.on_step(2, 20, {"validation/tasks": 4, "validation/reward": 0.5, "validation/scored": 4,
                             "validation/episodes": 4, "validation/reward_error": 0.1})  # fmt: skip
    progress.close()
    assert "step 2" in shown(published) and "held out: reward 0.500" in shown(published)
    assert shown(published).count("<circle") == 1 and "training reward" in shown(published)
    progress.on_step(3, 20, {"train/reward": math.nan, "train/scored": 8, "train/episodes": 8, **times})
    picture = shown(published).partition("<pre>")[0]
    assert "step 3" in picture and "<polyline" in picture and "nan" not in picture


def test_elsewhere_there_is_no_picture() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    assert not InteractiveShell.initialized() and notebook_cell() is None


def test_a_shell_within_a_program_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core import getipython
    from IPython.terminal.embed import InteractiveShellEmbed

    monkeypatch.setattr(getipython, "get_ipython", lambda: InteractiveShellEmbed.__new__(InteractiveShellEmbed))
    assert notebook_cell() is None


@pytest.mark.parametrize("points", [[(1, 0.5)], [(1, 0.0), (2, 1.0)], [(3, 0.5), (4, 0.5)]])
def test_every_point_is_inside_of_the_picture(points: list[tuple[float, float]]) -> None:
    reach = [0.9] * len(points)
    picture = parseString(render_svg(MetricCurve(points, "t"), MetricCurve(points, "v & w", (reach, reach))))
    assert len(picture.getElementsByTagName("circle")) == len(points)
    for tag, x, y in (("circle", "cx", "cy"), ("line", "x1", "y1"), ("line", "x2", "y2")):
        for each in picture.getElementsByTagName(tag):
            assert 0 <= float(each.getAttribute(x)) <= 640 and 0 <= float(each.getAttribute(y)) <= 220
    assert render_svg(MetricCurve([], "t"), MetricCurve([], "v")) == ""
