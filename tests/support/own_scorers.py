"""Scorers and judges as users write them, in each shape."""

from ajet.schema.episode import Verdict
from ajet.task_judge import BaseJudge


def two(given, wanted):
    return given == wanted


async def later(model_answer, ground_truth=None):
    return {"score": 0.5, "success": True, "reason": "half", "length": len(model_answer)}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert (data_source, extra_info, kwargs) == ("sums", {"index": 7}, {})
    return {"score": float(solution_str.endswith(ground_truth)), "acc": 1}


def old(task, output):
    return float(output.metadata["final_answer"] == task.metadata["answer"])


def undecided(task):
    return None


def raises(task):
    raise KeyError("gone")


def strange(one, other, third):
    return 1.0


def no_number(task):
    return "Correct"


def not_finite(task):
    return float("nan")


def pair(model_answer):
    return 2.0, False


class Counts:
    def __init__(self, config, most=3):
        self.most = most

    def __call__(self, reply):
        return min(len(reply), self.most) / self.most


class AsJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return Verdict(0.25, False, "a judge")
