"""The judge, by rule: 1 for an expression that makes the target with each number used once, 0 for anything else."""

import ast
import operator
from fractions import Fraction

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_judge.extraction import boxed_answer

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONGEST = 200
"""Characters of an expression that is read at all."""


class CountdownAnswerAsJudge(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        row = workflow_task.task.metadata
        answer = boxed_answer(workflow_output.metadata["final_answer"])
        right = answer is not None and solves(answer, row["nums"], row["target"])
        return float(right), right


def solves(expression: str, nums: list[int], target: int) -> bool:
    """Whether it is arithmetic, uses each of `nums` once and nothing else, and is worth `target`."""
    try:
        value, used = worth(ast.parse(expression[: LONGEST + 1].strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False
    return len(expression) <= LONGEST and value == target and sorted(used) == sorted(nums)


def worth(node: ast.expr) -> tuple[Fraction, list[int]]:
    """What a part of an expression is worth, exactly, and the numbers in it. Raises ValueError for anything that is
    not + - * / between whole numbers: it is read, and never run."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value), [node.value]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        (left, used), (right, more) = worth(node.left), worth(node.right)
        return OPERATORS[type(node.op)](left, right), used + more
    raise ValueError(f"{ast.dump(node)} is no arithmetic")
