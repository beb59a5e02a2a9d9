"""ModelJudge: decide whether an answer is correct, by models at servers.

Invariants: a verdict needs more than half of the votes; otherwise, or if votes are refused or unreadable, there is no
score. If no model is reachable the judge fails; a failure is never a reward of 0. The verdict stores the votes and
their models.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.extraction import answer_text
from ajet_judges.model_judge.panel import JudgeReply, ModelPanel, PanelMember, sum_usage
from ajet_judges.model_judge.prompt import TEMPLATE, build_question
from ajet_judges.model_judge.ranking import compare_attempts
from ajet_judges.model_judge.reply import VERDICT, ModelVote, VerdictWord, parse_vote
from ajet_judges.model_judge.settings import read_judge_settings

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.task_judge.judge import Compared

VERDICT_REWARDS: dict[VerdictWord, float] = {"correct": 1.0, "incorrect": 0.0}


class ModelJudge:
    """Created once a run; callable from any event loop."""

    def __init__(
        self, panel: ModelPanel, *, template: str = TEMPLATE, votes: int = 1, temperature: float | None = None,
        max_chars: int = 40_000,
    ) -> None:  # fmt: skip
        self.panel, self.template, self.votes, self.max_chars = panel, template, votes, max_chars
        self.temperature = temperature if temperature is not None else float(votes > 1)
        self.ranks: ModelJudge | None = None
        """Self if it ranks the attempts at a task."""

    @classmethod
    def of_experiment(cls, experiment: Experiment, otherwise: Callable[[], PanelMember] | None = None, /) -> ModelJudge:
        """Create the judge from an experiment. `otherwise`: model to use if `task_judge.judges` is empty. Raises
        ConfigError without a model; UserError if verdicts cannot be stored."""
        given = read_judge_settings(experiment, otherwise)
        return cls(
            given.panel,
            template=given.template,
            votes=given.votes,
            temperature=given.temperature,
            max_chars=given.max_chars,
        )

    def __str__(self) -> str:
        names = " or ".join(dict.fromkeys(member.model.model for member in self.panel.members))
        return f"{names}, {self.votes} votes each" if self.votes > 1 else names

    async def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Judge the output's `final_answer` against the task's `answer`. Raises JudgeFailure."""
        if "final_answer" not in workflow_output.metadata:
            raise JudgeFailure(
                "the workflow's output has no metadata['final_answer'], which the judge reads; return the answer "
                "as a string, or WorkflowOutput(metadata={'final_answer': …})"
            )
        task = workflow_task.task
        return await self.judge(
            format_question(task.main_query, task.init_messages),
            answer_text(workflow_output.metadata.get("final_answer")),
            answer_text(task.metadata.get("answer")),
            workflow_task.tool_results,
        )

    async def judge(self, question: str, answer: str, reference: str = "", tools: Sequence[str] = ()) -> Verdict:
        """Return 1 and success, 0 and failure, or no score. Raises JudgeFailure if no model is reachable."""
        if not answer.strip():
            return Verdict(0.0, False, "the answer is empty")
        parts = {"question": question, "answer": answer, "reference": reference, "tools": "\n\n".join(tools)}
        prompt = build_question(self.template, parts, self.max_chars)
        replies = await asyncio.gather(
            *(
                self.panel.ask(prompt, VERDICT, parse_vote, draw=draw, temperature=self.temperature)
                for draw in range(self.votes)
            ),
            return_exceptions=True,
        )
        found: list[JudgeReply[ModelVote]] = []
        failures: list[JudgeFailure] = []
        for reply in replies:
            if isinstance(reply, JudgeFailure):
                failures.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found.append(reply)
        if not found:
            raise failures[0]
        verdict = self._decide_verdict(found, failures)
        verdict.metrics["cut"] = float(prompt.cut > 0)
        verdict.details["answer_chars"] = len(answer)
        if prompt.cut:
            verdict.details["cut_chars"] = prompt.cut
            verdict.reason += f" ({prompt.cut} characters were not shown to the judge)"
        return verdict

    async def compare(self, attempts: Mapping[int, Compared], seed: str) -> dict[int, Verdict]:
        """Rank attempts at one task. Raises JudgeFailure."""
        task = attempts[min(attempts)].task.task
        question, reference = (
            format_question(task.main_query, task.init_messages),
            answer_text(task.metadata.get("answer")),
        )
        return await compare_attempts(self, attempts, seed, question=question, reference=reference)

    async def awake(self) -> None:
        """Request one word, bypassing the cache. Raises JudgeFailure if no model is reachable."""
        await self.panel.check_reachable(build_question("{answer}", {"answer": "Is anybody there?"}, self.max_chars))

    def let_go(self) -> None:
        """Close the verdict store until the next use. Idempotent."""
        if self.panel.store is not None:
            self.panel.store.close()

    def _decide_verdict(self, replies: Sequence[JudgeReply[ModelVote]], failures: Sequence[JudgeFailure]) -> Verdict:
        votes = [(reply.value, reply.model) for reply in replies if reply.value is not None]
        tally = Counter(vote.verdict for vote, _ in votes)
        winner, most = tally.most_common(1)[0] if tally else ("undecided", 0)
        problems = [problem for reply in replies for problem in reply.problems] + [str(each) for each in failures]
        details: dict[str, Any] = {
            "votes": [{"model": model, "verdict": vote.verdict, "reason": vote.reason[:500]} for vote, model in votes],
        }
        if problems:
            details["problems"] = [problem[:300] for problem in problems]
        metrics = sum_usage(replies)
        metrics["agreement"] = most / len(votes) if votes else 0.0
        metrics["disagreed"] = float(len(tally) > 1)
        share = f"{most} of {self.votes} votes" if self.votes > 1 else "it"
        if 2 * most <= self.votes or winner == "undecided":
            why = "; ".join(problems) or (
                f"votes: {', '.join(f'{count} {word}' for word, count in tally.items())}"
                if len(tally) > 1
                else next((vote.reason for vote, _ in votes if vote.reason), "undecided")
            )
            return Verdict(None, None, f"no score: the judge could not decide: {why}", metrics=metrics, details=details)
        vote, model = next((vote, model) for vote, model in votes if vote.verdict == winner)
        by = f"{model}: {winner}" if self.votes == 1 else f"{winner} by {share}, {model}"
        reason = f"{by}{f': {vote.reason}' if vote.reason else ''}"
        return Verdict(VERDICT_REWARDS[winner], winner == "correct", reason, metrics=metrics, details=details)


def format_question(query: str, messages: Sequence[Any]) -> str:
    """Return a task as text."""
    if query:
        return query
    return "\n".join(f"{each.get('role')}: {answer_text(each.get('content'))}" for each in messages)
