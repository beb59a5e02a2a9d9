"""ModelJudge: decides by the votes of language models whether an answer is correct.

Invariants: a verdict needs more than half of the votes. Otherwise, or if votes are refused or unreadable, there is no
score. If no model is reachable the judge fails. A failure is never a reward of 0. The verdict stores the votes and
their models.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.extraction import answer_text
from ajet.task_judge.judge import JudgeInput
from ajet_judges.model_judge.panel import JudgeReply, ModelPanel, PanelMember, sum_usage
from ajet_judges.model_judge.prompt import TEMPLATE, JudgeQuestion, build_question, shorten_text
from ajet_judges.model_judge.reply import VERDICT, ModelVote, VerdictWord, build_tiers_schema, parse_tiers, parse_vote
from ajet_judges.model_judge.settings import read_judge_settings

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.task_judge.judge import JudgeInput


VERDICT_REWARDS: dict[VerdictWord, float] = {"correct": 1.0, "incorrect": 0.0}


class ModelJudge:
    """Judges answers, and ranks attempts, by the models in `task_judge.judges`.

    Create it once per run. It can be called from any event loop.
    """

    def __init__(
        self, panel: ModelPanel, *, template: str = TEMPLATE, votes: int = 1, temperature: float | None = None,
        max_chars: int = 40_000,
    ) -> None:  # fmt: skip
        self.panel = panel
        self.template = template
        self.votes = votes
        self.max_chars = max_chars
        self.temperature = temperature if temperature is not None else float(votes > 1)
        self.ranks: ModelJudge | None = None
        """Self if it ranks the attempts at a task."""

    @classmethod
    def of_experiment(cls, experiment: Experiment, otherwise: Callable[[], PanelMember] | None = None, /) -> ModelJudge:
        """Create the judge from an experiment's settings.

        Args:
            otherwise: returns the model to use if `task_judge.judges` is empty.

        Raises:
            ConfigError: there is no model.
            UserError: verdicts cannot be stored.
        """
        settings = read_judge_settings(experiment, otherwise)
        return cls(
            settings.panel,
            template=settings.template,
            votes=settings.votes,
            temperature=settings.temperature,
            max_chars=settings.max_chars,
        )

    def __str__(self) -> str:
        """Return the models' names for messages, and the number of votes if there are several."""
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
        """Return a verdict: reward 1 and success, reward 0 and failure, or no score.

        Args:
            tools: results of the attempt's tool calls.

        Raises:
            JudgeFailure: no model is reachable.
        """
        if not answer.strip():
            return Verdict(0.0, False, "the answer is empty")
        parts = {"question": question, "answer": answer, "reference": reference, "tools": "\n\n".join(tools)}
        prompt = build_question(self.template, parts, self.max_chars)
        replies = await asyncio.gather(
            *(
                self.panel.ask(prompt, VERDICT, parse_vote, draw=number, temperature=self.temperature)
                for number in range(self.votes)
            ),
            return_exceptions=True,
        )
        votes_received: list[JudgeReply[ModelVote]] = []
        failures: list[JudgeFailure] = []
        for reply in replies:
            if isinstance(reply, JudgeFailure):
                failures.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                votes_received.append(reply)
        if not votes_received:
            raise failures[0]
        verdict = self._decide_verdict(votes_received, failures)
        verdict.metrics["cut"] = float(prompt.cut > 0)
        verdict.details["answer_chars"] = len(answer)
        if prompt.cut:
            verdict.details["cut_chars"] = prompt.cut
            verdict.reason += f" ({prompt.cut} characters were not shown to the judge)"
        return verdict

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Rank the attempts at one task.

        Args:
            attempts: input of each attempt, by its index.
            seed: fixes the shuffled orders in which attempts are shown.

        Returns:
            A verdict per attempt: reward 1 for the best, 0 for the worst.

        Raises:
            JudgeFailure: no model is reachable.
        """
        task = attempts[min(attempts)].task.task
        question, reference = (
            format_question(task.main_query, task.init_messages),
            answer_text(task.metadata.get("answer")),
        )
        return await compare_attempts(self, attempts, seed, question=question, reference=reference)

    async def awake(self) -> None:
        """Check that a model answers: send a request for one word, bypassing the cache.

        Raises:
            JudgeFailure: no model is reachable.
        """
        await self.panel.check_reachable(build_question("{answer}", {"answer": "Is anybody there?"}, self.max_chars))

    def let_go(self) -> None:
        """Close the file of stored verdicts until the next use. Idempotent."""
        if self.panel.store is not None:
            self.panel.store.close()

    def _decide_verdict(self, replies: Sequence[JudgeReply[ModelVote]], failures: Sequence[JudgeFailure]) -> Verdict:
        """Return the verdict of the majority of the votes, with all votes in its details.

        Without more than half of the `votes` for one word, or with most for "undecided", there is no score.

        Args:
            replies: the received votes; one without a readable reply has no value.
            failures: failures of the other votes.
        """
        votes = [(reply.value, reply.model) for reply in replies if reply.value is not None]
        tally = Counter(vote.verdict for vote, _ in votes)
        winner, winner_votes = tally.most_common(1)[0] if tally else ("undecided", 0)
        problems = [problem for reply in replies for problem in reply.problems] + [str(failure) for failure in failures]
        details: dict[str, Any] = {
            "votes": [{"model": model, "verdict": vote.verdict, "reason": vote.reason[:500]} for vote, model in votes],
        }
        if problems:
            details["problems"] = [problem[:300] for problem in problems]
        metrics = sum_usage(replies)
        metrics["agreement"] = winner_votes / len(votes) if votes else 0.0
        metrics["disagreed"] = float(len(tally) > 1)
        share_text = f"{winner_votes} of {self.votes} votes" if self.votes > 1 else "it"
        if 2 * winner_votes <= self.votes or winner == "undecided":
            why_undecided = "; ".join(problems) or (
                f"votes: {', '.join(f'{count} {word}' for word, count in tally.items())}"
                if len(tally) > 1
                else next((vote.reason for vote, _ in votes if vote.reason), "undecided")
            )
            return Verdict(
                None, None, f"no score: the judge could not decide: {why_undecided}", metrics=metrics, details=details
            )
        vote, model = next((vote, model) for vote, model in votes if vote.verdict == winner)
        voters = f"{model}: {winner}" if self.votes == 1 else f"{winner} by {share_text}, {model}"
        reason = f"{voters}{f': {vote.reason}' if vote.reason else ''}"
        return Verdict(VERDICT_REWARDS[winner], winner == "correct", reason, metrics=metrics, details=details)


def format_question(query: str, messages: Sequence[Any]) -> str:
    """Return a task as one text: its query, or its messages with their roles."""
    if query:
        return query
    return "\n".join(f"{message.get('role')}: {answer_text(message.get('content'))}" for message in messages)


# Rank the attempts at one task, as rewards.
# Invariants: the order shown to a model is drawn by seed, so a position has no advantage; each attempt is named
# once, as better, tied, or undecided (no score). A reward is the rank within the group: 1 for the best, 0 for the
# worst, the mean for ties; rewards of different groups cannot be compared. (Relative scoring of a group by one
# call, as in OpenPipe's RULER.)
ASKED = """Several attempts were made at one task. Which of them are better?

The task:
"""
REFERENCE = "\n\nWhat is known to be correct:\n"
HOW = """

Compare what the attempts achieve: first whether it is correct and does what the task asks, then whether it is whole, \
then how directly they came to it. Length, tone, confidence and the order in which they stand here are no merits. \
Attempts that are as good as each other share a tier, also where all are wrong alike."""
BY_CRITERIA = """

Compare how far the attempts meet the criteria, and go by nothing else. Length, tone, confidence, the order in which \
they stand here and what an attempt says of itself are no merits unless a criterion says so. Attempts that are as good \
as each other share a tier, also where all are bad alike."""
FORM = """Reply with one JSON object and nothing else: {"reason": "…", "tiers": [["%s"], …], "undecided": []}. The \
reason comes first and is one or two sentences. tiers: the labels of the attempts, the best first, those as good as \
each other together. undecided: those of which you cannot tell. Each label stands in it once: %s."""
Tiers = tuple[list[list[str]], str]


@dataclass(frozen=True, slots=True)
class Entrant:
    """One of the attempts that a ranking compares."""

    answer: str
    tools: Sequence[str] = ()
    """Tool results of the attempt."""

    @property
    def text(self) -> str:
        """The attempt's text in the prompt."""
        answer = self.answer or "(nothing)"
        return "\n\n".join([*(f"A tool answered:\n{tool}" for tool in self.tools), f"It answered:\n{answer}"])


async def compare_attempts(
    judge: ModelJudge, attempts: Mapping[int, JudgeInput], seed: str, *, question: str, reference: str,
    answer: str = "final_answer", criteria: str = "",
) -> dict[int, Verdict]:  # fmt: skip
    """Rank the attempts at one task by the judge's models.

    Args:
        attempts: input of each attempt, by its index.
        seed: fixes the shuffled orders in which attempts are shown.
        answer: metadata field of the workflow's output with the answer.
        criteria: criteria to rank by, one per line.

    Raises:
        JudgeFailure: no model is reachable.
    """
    repeats = sorted(attempts)
    entrants = []
    for repeat in repeats:
        metadata = attempts[repeat].output.metadata
        entrants.append(
            Entrant(answer_text(metadata.get(answer, metadata.get("final_answer"))), attempts[repeat].task.tool_results)
        )
    return dict(zip(repeats, await rank_entrants(judge, question, reference, entrants, seed, criteria), strict=True))


async def rank_entrants(
    judge: ModelJudge, question: str, reference: str, entrants: Sequence[Entrant], seed: str, criteria: str = ""
) -> list[Verdict]:
    """Request rankings with attempts in shuffled orders, one per vote, and return one verdict per attempt.

    Args:
        seed: fixes the shuffled orders.
        criteria: criteria to rank by, one per line.

    Returns:
        Verdicts with the mean score over the votes, or no score if at most half of the votes placed the attempt.

    Raises:
        JudgeFailure: no model is reachable.
    """
    if len(entrants) < 2:
        return [Verdict(None, None, "no score: there is no other attempt to compare with") for _ in entrants]
    # A, B, …, Z, A26, A27, …
    labels = [chr(ord("A") + number) if number < 26 else f"A{number}" for number in range(len(entrants))]
    orders = [_shuffle_order(len(entrants), f"{seed}/{draw}") for draw in range(judge.votes)]
    questions = [_build_question(judge, question, reference, entrants, order, labels, criteria) for order in orders]
    schema = build_tiers_schema(labels)
    replies = await asyncio.gather(
        *(
            judge.panel.ask(
                prompt, schema, lambda text: parse_tiers(text, labels), draw=draw, temperature=judge.temperature
            )
            for draw, prompt in enumerate(questions)
        ),
        return_exceptions=True,
    )
    replies_by_order: list[tuple[list[int], JudgeReply[Tiers]]] = []
    failure: JudgeFailure | None = None
    for order, reply in zip(orders, replies, strict=True):
        if isinstance(reply, JudgeFailure):
            failure = reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            replies_by_order.append((order, reply))
    if not replies_by_order and failure is not None:
        raise failure
    return _build_verdicts(
        replies_by_order, labels, len(entrants), judge.votes, any(prompt.cut for prompt in questions), entrants
    )


def _build_verdicts(
    ordered_replies: Sequence[tuple[list[int], JudgeReply[Tiers]]],
    labels: Sequence[str],
    count: int,
    votes: int,
    cut: bool,
    entrants: Sequence[Entrant],
) -> list[Verdict]:
    """Return a verdict per attempt: its mean score over the votes, or no score without a majority of votes.

    Args:
        ordered_replies: for each vote, the order in which attempts were shown (indexes), and the reply.
        labels: labels by position in that order.
        count: number of attempts.
        cut: True if a prompt was shortened.
        entrants: the attempts, by index.
    """
    positions: list[list[int]] = [[] for _ in range(count)]
    placed_replies = [(order, reply, reply.value) for order, reply in ordered_replies if reply.value is not None]
    scores_by_vote: list[dict[int, float]] = []
    for order, _, (tiers, _) in placed_replies:
        scores = _score_tiers(tiers)
        scores_by_vote.append(
            {index: scores[labels[position]] for position, index in enumerate(order) if labels[position] in scores}
        )
        for position, index in enumerate(order):
            if index in scores_by_vote[-1]:
                positions[index].append(position)
    scores_by_attempt = [[vote[index] for vote in scores_by_vote if index in vote] for index in range(count)]
    problems = [problem for _, reply in ordered_replies for problem in reply.problems]
    metrics = sum_usage([reply for _, reply in ordered_replies])
    # One request covers all attempts, so each attempt's verdict states its share of the cost.
    shared_metrics = {name: value / count if name in ("calls", "cost", "refused", "unreadable") else value
              for name, value in metrics.items()}  # fmt: skip
    shared_metrics["agreement"] = _measure_agreement(scores_by_vote, count)
    shared_metrics["cut"] = float(cut)
    models = ", ".join(dict.fromkeys(reply.model for _, reply, _ in placed_replies))
    # The reason of the first ranking stands for all attempts.
    why = next((reason for _, _, (_, reason) in placed_replies if reason), "")
    verdicts = []
    for index in range(count):
        details: dict[str, Any] = {
            "ranking": {"model": models, "shown": positions[index], "of": count, "places": scores_by_attempt[index]},
            "answer_chars": len(entrants[index].answer),
        }
        if problems:
            details["problems"] = [problem[:300] for problem in problems]
        if 2 * len(scores_by_attempt[index]) <= votes:
            why_not = "; ".join(problems) or "the attempt could not be ranked among the others"
            verdicts.append(
                Verdict(
                    None,
                    None,
                    f"no score: the judge could not decide: {why_not}",
                    metrics=dict(shared_metrics),
                    details=details,
                )
            )
            continue
        reward = fmean(scores_by_attempt[index])
        reason = f"{models}: {reward:g} among {count} attempts (1 is the best){f': {why}' if why else ''}"
        verdicts.append(Verdict(reward, None, reason, metrics=dict(shared_metrics), details=details))
    return verdicts


def _score_tiers(tiers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Map labels to scores: 1 for the best, 0 for the worst, evenly spaced, with the mean rank for ties.

    Args:
        tiers: labels from best to worst, tied labels together.
    """
    count = sum(map(len, tiers))
    if count < 2:
        return {}
    scores: dict[str, float] = {}
    better_count = 0
    for tier in tiers:
        # Tied labels share the mean of the ranks that they occupy.
        rank = better_count + (len(tier) - 1) / 2
        scores |= dict.fromkeys(tier, 1.0 - rank / (count - 1))
        better_count += len(tier)
    return scores


def _measure_agreement(placed: Sequence[Mapping[int, float]], count: int) -> float:
    """Return the share of attempt pairs that two votes order equally, from 0 to 1.

    Only pairs that both votes placed count. Without any the result is 1.

    Args:
        placed: for each vote, scores by the attempt's index.
        count: number of attempts.
    """
    equal_pairs = compared_pairs = 0
    for first_index, second_index in itertools.combinations(range(count), 2):
        signs = [
            (vote[first_index] > vote[second_index]) - (vote[first_index] < vote[second_index])
            for vote in placed
            if first_index in vote and second_index in vote
        ]
        for first, second in itertools.combinations(signs, 2):
            compared_pairs += 1
            equal_pairs += first == second
    return equal_pairs / compared_pairs if compared_pairs else 1.0


def _build_question(
    judge: ModelJudge,
    question: str,
    reference: str,
    entrants: Sequence[Entrant],
    order: Sequence[int],
    labels: Sequence[str],
    criteria: str,
) -> JudgeQuestion:
    """Return the prompt that shows the attempts in this order, under the labels A, B, ….

    Each attempt may have its share of twice `max_chars` characters; longer ones are cut.
    """
    limit = judge.max_chars
    shown_question, cut = shorten_text(question, limit)
    pieces: list[tuple[str, str | None]] = [(ASKED, shown_question)]
    if reference:
        shown_reference, omitted = shorten_text(reference, limit)
        pieces.append((REFERENCE, shown_reference))
        cut += omitted
    for label, index in zip(labels, order, strict=True):
        text, omitted = shorten_text(entrants[index].text, max(2 * limit // len(order), 200))
        pieces.append((f"\n\nAttempt {label}:\n", text))
        cut += omitted
    pieces.append((f"\n\nThe criteria to go by:\n{criteria}{BY_CRITERIA}" if criteria else HOW, None))
    return JudgeQuestion(tuple(pieces), FORM % (labels[0], ", ".join(labels)), cut)


def _shuffle_order(count: int, seed: str) -> list[int]:
    """Return the indexes from 0 to `count` - 1 in an order that the seed fixes."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order
