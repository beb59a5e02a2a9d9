"""The definitions of metrics name every number that a run can log, and none that it can't."""

import ast
import re
from collections import Counter

import numpy as np
import pytest

from ajet.record.metric_definitions import list_metric_definitions
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Failure, Group, Verdict
from ajet.schema.task import Task
from ajet.train.accounting import episode_metrics, interval_metrics, pass_metrics
from tests.docs.snippets import ROOT

WRITERS = [
    "train/accounting.py",
    "train/validation.py",
    "train/session.py",
    "train/sink.py",
    "train/step.py",
    "train/sources/store.py",
    "../plugins/ajet_proof/recorded/each_step.py",
    "algorithm/credit_assignment.py",
]
WRITERS += ["algorithm/importance.py", "algorithm/staleness.py", "commands/pace.py"]
WRITERS += ["backbone/local/losses.py", "backbone/local/backbone.py", "backbone/local/trainer.py"]
WRITERS += ["algorithm/supervised_batch.py", "train/sources/replies.py"]
WRITERS += ["../plugins/ajet_judges/model_judge/judge.py"]
WRITERS += [f"../plugins/ajet_judges/model_judge/{name}.py" for name in ("panel", "judge")]
WRITERS += ["algorithm/token_credit.py", "backbone/local/value_head.py"]
SPLITS = "train|validation|debug"


def documented() -> list[str]:
    """The defined names."""
    return [name for metric in list_metric_definitions() for name in metric.names]


def pattern(name: str) -> re.Pattern[str]:
    """A documented name as a pattern: words in capitals stand for anything, train/ for every split."""
    text = re.sub(r"\b[A-Z]+\b", "\0", name)
    text = re.escape(text).replace(re.escape("\0"), r"[\w:]+")
    return re.compile(re.sub(rf"^({SPLITS})/", f"(?:{SPLITS})/", text))


def call(index: int, **more) -> Call:
    ids, zeros = np.arange(3, dtype=np.int32), np.zeros(3, np.float32)
    return Call(index, "a", "a", True, None, 0, ids, ids, zeros, zeros, (), "stop", (), None, None, **more)


def episode(repeat: int, verdict: Verdict | None, **more) -> Episode:
    return Episode(f"e{repeat}", Task(task_id="t"), repeat, 1, "train", verdict=verdict, **more)


@pytest.fixture
def group() -> Group:
    """One episode of each kind."""
    good = episode(0, Verdict(1.0, True), calls=[call(0), call(1, fork="tools")], metrics={"own": 2.0})
    odd = episode(1, Verdict(0.0, False), calls=[call(0)], checks=["nonsense:loop"], untrained=Counter(over_length=3))
    broken = episode(2, None, status="failed", failure=Failure("agent", "ValueError", "no"))
    return Group(Task(task_id="t"), 0, [good, odd, broken])


def test_what_was_played_is_documented(group):
    produced = {*episode_metrics(group.episodes, "train"), *pass_metrics([group], "validation")}
    produced |= {re.sub("(@3)_(low|high)$", r"\1", name) for name in interval_metrics([group], "validation")}
    patterns = [pattern(name) for name in documented()]
    assert "train/fork_rate/tools" in produced and "validation/pass@3" in produced
    assert [name for name in sorted(produced) if not any(each.fullmatch(name) for each in patterns)] == []


def test_the_update_is_documented():
    from ajet.backbone.local.losses import LossTally
    from ajet.backbone.local.trainer import Trainer

    produced = set(Trainer.build_metrics(LossTally(tokens=1, compared=1, stale=1), [1.0], 1e-5, 10, 0.1))
    assert {"loss", "mismatch_kl", "lr", "stale_is_weight_mean"} <= produced
    assert produced - set(documented()) == set()


def test_nothing_is_documented_that_no_code_writes():
    literals = "\n".join(
        node.value
        for writer in WRITERS
        for node in ast.walk(ast.parse((ROOT / "ajet" / writer).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ).split("\n")
    parts = {part for literal in literals for part in re.split(r"[/@:]", literal)}
    for name in documented():
        tail = re.sub(rf"^({SPLITS})/", "", name)
        words = [word for word in re.split(r"[/@:]", tail) if not word.isupper()]
        assert all(word in parts for word in words), name


def test_the_credit_is_documented():
    text = (ROOT / "ajet/algorithm/credit_assignment.py").read_text()
    written = set(re.findall(r'"(credit/\w+)"', text))
    assert len(written) > 3
    assert written == {name for name in documented() if name.startswith("credit/")}
