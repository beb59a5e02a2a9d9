"""`--backbone debug`: runs a few tasks as in training and shows each episode, without training.

Invariants: the screen always shows the present activity. An episode is on the disk and on the screen as soon as it
ends, so Ctrl-C loses only unfinished ones. Equal failures are shown once and counted. The run succeeds if at least one
episode did.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ajet.commands.agent_hints import list_hints
from ajet.commands.episode_panel import find_hint, is_message_enough, parse_traceback, show_episode
from ajet.commands.pace import MODEL, EpisodePace, describe_step_time
from ajet.commands.runner import format_start_command, load_algorithm
from ajet.record.console import console, counted, format_seconds, label, print_line, printable
from ajet.record.learned import advise_given_answers
from ajet.record.live_screen import LiveLine
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import UserError
from ajet.train.accounting import episode_metrics, group_by_order, log_formats
from ajet.train.footprint import describe_memory, estimate_needs
from ajet.train.interrupts import Interrupts, Preempted
from ajet.train.parts import assemble, pins_of

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.watched import Watch
    from ajet.record import RunDirectory
    from ajet.workflow import Workflow

SHOWN_TASKS = 12
"""Maximum number of tasks with a line in the verdict."""
SHOWN_REASON = 400
"""Characters of a failure's message repeated on the last screen."""
RESTART_NOTE = "Ended by a signal; the same command starts again from the first episode."
Signature = tuple[str, str, str, str]
"""Two failures are equal if boundary, kind, the user's line and the message without numbers are equal."""


def debug_run(experiment: Experiment, run: RunDirectory, interrupts: Interrupts) -> list[Episode]:
    """Play the first `debug_first_n_tasks` training tasks, and show the episodes.

    Raises:
        UserError: Every episode failed.
        KeyboardInterrupt: Raised again after the ended episodes are recorded and summarized.
    """
    session = DebugSession(experiment, run, interrupts)
    with (
        LiveLine(session.describe_progress) as line,
        assemble(experiment, run_id=run.run_id, on_episode=session.on_episode, pins=pins_of(run)) as run_parts,
    ):
        tasks = list(enumerate(run_parts.tasks("train")))[: experiment.ajet.debug.debug_first_n_tasks]
        watch = getattr(run_parts.backbone, "watch", None)
        session.begin(len(tasks) * experiment.ajet.rollout.num_repeat, watch, run_parts.workflow)
        run.status.set(phase="rollout", step=0)
        try:
            for _ in run_parts.rollout.play(tasks, step=0, split="debug"):
                pass  # `on_episode` has taken each episode
        except KeyboardInterrupt as interrupt:
            interrupts.forget_raised()
            line.close()
            session.conclude()
            if isinstance(interrupt, Preempted):
                raise Preempted(RESTART_NOTE) from None
            raise
        line.close()
        session.conclude()
    session.refuse_if_all_failed()
    return session.episodes


class DebugSession:
    """The episodes of a debug run so far: records and shows each, and counts failures."""

    def __init__(self, experiment: Experiment, run: RunDirectory, interrupts: Interrupts) -> None:
        self._experiment = experiment
        self._run = run
        self._interrupts = interrupts
        self.episodes: list[Episode] = []
        self._started_at = time.monotonic()
        self._expected_episodes = 0
        self._watch: Watch | None = None
        self._workflow: type[Workflow] | None = None
        self._episodes_by_failure: dict[Signature, list[Episode]] = {}

    def begin(self, episodes: int, watch: Watch | None, workflow: type[Workflow]) -> None:
        """Note the number of planned episodes once all components are loaded, and start the clock.

        Args:
            episodes: Number of planned episodes.
            watch: Observes the engine's calls, if the engine can be observed.
            workflow: The agent's class.
        """
        self._expected_episodes = episodes
        self._watch = watch
        self._workflow = workflow
        self._started_at = time.monotonic()

    def describe_progress(self) -> Sequence[str]:
        """Return the lines of text on the present activity for the screen, the most important one first."""
        elapsed_text = f"{time.monotonic() - self._started_at:.0f} s"
        if not self._expected_episodes:
            rollout = self._experiment.ajet.rollout
            model = rollout.endpoint.model if rollout.engine == "endpoint" else self._experiment.ajet.model.path
            return [f"loading {model} · {elapsed_text}"]
        summary_parts = [f"running: {len(self.episodes)} of {counted(self._expected_episodes, 'episode')} ended"]
        if failed := sum(episode.failure is not None for episode in self.episodes):
            summary_parts.append(f"{failed} failed")
        watch = self._watch
        if watch is None or watch.began is None:
            return [" · ".join([*summary_parts, "no model call yet", elapsed_text])]
        summary_parts.append(f"{counted(len(watch.under_way), 'reply')} in progress")
        if watch.sampled_tokens:
            rate = watch.sampled_tokens / max(time.monotonic() - watch.began, 1e-3)
            summary_parts.append(f"{watch.sampled_tokens:,} tokens, {rate:.0f} a second")
        elif watch.under_way and watch.prompt_tokens:
            summary_parts.append(f"processing {watch.prompt_tokens:,} tokens of prompts")
        lines = [" · ".join([*summary_parts, elapsed_text])]
        if (newest := watch.newest_words()) is not None:
            reply, newest_text = newest
            lines.append(f"{reply.name}, {counted(reply.tokens, 'token')}: …{' '.join(newest_text.split())[-60:]}")
        return lines

    def on_episode(self, episode: Episode) -> None:
        """Record an ended episode and show it, unless its failure equals one that was shown before."""
        with self._interrupts.defer():
            self._run.episodes.write(0, "debug", [episode])
            self.episodes.append(episode)
            if episode.failure is not None:
                equal_failures = self._episodes_by_failure.setdefault(_sign_failure(episode), [])
                equal_failures.append(episode)
                if len(equal_failures) > 1:
                    return
            show_episode(episode)

    def conclude(self) -> None:
        """Record the metrics of all episodes, and print the result, hints, and whether training can learn from it."""
        seconds = time.monotonic() - self._started_at
        if not self.episodes:
            console.print(f"No episode had ended after {format_seconds(seconds)}: nothing was recorded.")
            return
        settings = self._experiment.ajet
        log_formats(self.episodes, settings.context_tracker)
        pace = self._measure_pace(seconds)
        metrics = episode_metrics(self.episodes, "debug")
        self._run.metrics.log(0, metrics | pace.to_metrics(), **{MODEL: settings.model.path})
        for equal_failures in self._episodes_by_failure.values():
            if len(equal_failures) > 1:
                first = equal_failures[0]
                console.print(
                    f"The failure of {label(first.task.task_id)}, attempt {first.repeat}, is the same as in "
                    f"{len(equal_failures) - 1} more",
                    markup=False,
                )
        unfinished = self._expected_episodes - len(self.episodes)
        scored = int(metrics["debug/scored"])
        reward = f", mean reward {metrics['debug/reward']:.2f}" if scored else ""
        console.print(
            (
                f"{counted(len(self.episodes), 'episode')}: {scored} scored{reward}, {int(metrics['debug/failed'])} "
                f"failed, {counted(int(metrics['debug/forks']), 'call')} tokenized anew"
            )
            + (f"; {unfinished} had not ended" if unfinished > 0 else ""),
            soft_wrap=True,
        )
        print_line(f"Record: {self._run.path}")
        if self._all_failed and len(self._episodes_by_failure) == 1:
            return  # `refuse_if_all_failed` prints what to do
        for boundary, hint in sorted(
            {
                (episode.failure.boundary, find_hint(episode.failure, self._workflow))
                for episode in self.episodes
                if episode.failure
            }
        ):
            print_line(f"hint ({boundary}): {hint}")
        if self._all_failed:
            return
        if scored and not any(timeline.sampled for episode in self.episodes for timeline in episode.timelines):
            console.print(
                "hint: ajet captured no token to train on: does the workflow call the model at the base URL and "
                "key of its tuner?"
            )
        hints = list_hints(self._experiment, self.episodes, self._workflow)
        for hint in hints:
            print_line(f"hint: {hint}")
        self._print_verdict(pace, bool(hints))

    @property
    def _all_failed(self) -> bool:
        """True if there are episodes and each of them failed."""
        return bool(self.episodes) and all(episode.failure for episode in self.episodes)

    def refuse_if_all_failed(self) -> None:
        """Raise UserError if every episode failed, with reason and cure if all failures are equal."""
        if not self._all_failed:
            return
        command = format_start_command(self._experiment, "debug")
        start_text = f", then: {command}" if command else ""
        count = counted(len(self.episodes), "episode")
        failure = self.episodes[0].failure
        if len(self._episodes_by_failure) > 1 or failure is None:
            raise UserError(
                f"All {count} failed, for {len(self._episodes_by_failure)} reasons.",
                do=f"correct the code that the hints above name{start_text}",
            )
        own_frames = parse_traceback(failure.traceback).own
        message = printable(failure.message.partition("\n")[0])
        kind = "" if is_message_enough(failure) else f"{failure.kind}: "
        raise UserError(
            f"All {count} failed, for one reason ({failure.boundary}): {kind}"
            f"{message[:SHOWN_REASON]}{'…' if len(message) > SHOWN_REASON else ''}",
            where=f"{printable(own_frames[-1].place)} {printable(own_frames[-1].code)}".rstrip() if own_frames else "",
            do=f"{find_hint(failure, self._workflow)}{start_text}",
        )

    def _print_verdict(self, pace: EpisodePace, hinted: bool) -> None:
        """Print whether training can learn from the episodes, its expected time and memory, and the next command.

        Args:
            hinted: True if a hint on the user's code was printed, which is then the next thing to do.
        """
        settings, groups = self._experiment.ajet, group_by_order(self.episodes)
        try:
            learns: Callable[[Group], bool] = load_algorithm(self._experiment).learns_from
        except UserError as refusal:
            print_line(f"Training would refuse this YAML: {refusal.what}")
            return
        useful_tasks = sum(map(learns, groups))
        colour = "green" if useful_tasks else "yellow"
        verdict = f"training can learn from {useful_tasks} of {counted(len(groups), 'task')}."
        console.print(Text.assemble(("Verdict: ", "bold"), (verdict, f"bold {colour}")))
        for line in describe_tasks(groups, learns):
            print_line(printable(line))
        if cut_text := describe_cut_replies(self.episodes):
            print_line(f"{printable(cut_text)}.", style="yellow")
        if settings.rollout.engine == "endpoint":
            console.print(
                "Replies of an endpoint cannot be trained on, because it returns no token ids: to train, set "
                "rollout.engine: auto.",
                markup=False,
            )
            return
        if pace.tokens:
            step_time = describe_step_time(pace, settings)
            print_line(f"On this machine a training step takes {step_time}.")
        needs = estimate_needs(self._experiment, train=0, validates=False)
        if needs is not None and needs.local is not None:
            memory = describe_memory(needs.local, needs.free)
            print_line(f"Memory for training: {memory}.")
        if not useful_tasks:
            advice = "correct the code that the hint above names" if hinted else advise_on_groups(groups, settings)
            print_line(f"Before training: {advice}.")
        command = format_start_command(self._experiment, "local" if useful_tasks else "debug")
        if command:
            print_line(f"{'Start training' if useful_tasks else 'Run it again'}: {command}")

    def _measure_pace(self, seconds: float) -> EpisodePace:
        """Return counts and times of the episodes, for an estimate of a training step.

        Args:
            seconds: Duration of the run.
        """
        concurrent_episodes = min(self._experiment.ajet.debug.debug_max_parallel, self._expected_episodes)
        sampled_tokens = self._watch.sampled_tokens if self._watch is not None else 0
        longest = max(episode.ended - episode.started for episode in self.episodes)
        return EpisodePace(len(self.episodes), seconds, sampled_tokens, concurrent_episodes, longest)


def _sign_failure(episode: Episode) -> Signature:
    """Return what equal failures share: boundary, kind, the user's line, and the message without its numbers."""
    failure = episode.failure
    assert failure is not None
    own_frames = parse_traceback(failure.traceback).own
    location = f"{own_frames[-1].file}:{own_frames[-1].line}" if own_frames else ""
    return failure.boundary, failure.kind, location, re.sub(r"[0-9a-f]*\d[0-9a-f]*", "#", failure.message)


def describe_tasks(groups: Sequence[Group], learns: Callable[[Group], bool]) -> list[str]:
    """Return a line of text per task with its rewards, and whether training can learn from it.

    Args:
        learns: Returns True for a group with a learning signal.
    """
    shown_groups = groups[:SHOWN_TASKS]
    lines = [f"  {label(group.task.task_id)}: {_describe_rewards(group, learns(group))}" for group in shown_groups]
    if len(groups) > SHOWN_TASKS:
        lines.append(f"  … and {counted(len(groups) - SHOWN_TASKS, 'more task')}")
    return lines


def _describe_rewards(group: Group, teaches: bool) -> str:
    """Return the rewards of one task's attempts as text, and whether training can learn from them.

    Args:
        teaches: True if the group has a learning signal.
    """
    rewards, total = [episode.reward or 0.0 for episode in group.scored], len(group.episodes)
    if not rewards:
        failed = sum(episode.failure is not None for episode in group.episodes)
        return f"0 of {total} scored ({failed} failed): nothing to learn from"
    text = f"{sum(reward > 0 for reward in rewards)} of {total} rewards above 0"
    text += f", {total - len(rewards)} without a score" if len(rewards) < total else ""
    low, high = min(rewards), max(rewards)
    if teaches:
        return f"{text} (rewards {low:g} to {high:g}): training can learn from it"
    return (
        f"{text} (all {low:g}): no difference to learn from"
        if low == high
        else f"{text} ({low:g} to {high:g}): too similar to learn from"
    )


def _count_cut_replies(episodes: Sequence[Episode]) -> tuple[int, Counter[str]]:
    """Return the number of replies, and how many of them each limit on tokens has cut."""
    calls = [call for episode in episodes for call in episode.calls if call.is_delivered]
    return len(calls), Counter(str(call.extra.get("cut_by", "a limit on tokens")) for call in calls if call.is_cut)


def describe_cut_replies(episodes: Sequence[Episode]) -> str:
    """Return how many replies were cut by which limit on tokens and what to do, or "" if none was cut."""
    replies, limits = _count_cut_replies(episodes)
    if not limits:
        return ""
    names = ", ".join(f"{count} by {limit}" for limit, count in limits.most_common())
    count_text = f"{limits.total()} of {counted(replies, 'reply')} cut short ({names})"
    return f"{count_text}: raise that limit, or prompt for shorter replies"


def advise_on_groups(groups: Sequence[Group], settings: AjetConfig) -> str:
    """Return what to change if training cannot learn from any of the tasks."""
    episodes = [episode for group in groups for episode in group.episodes]
    scored = [episode for group in groups for episode in group.scored]
    failed_count = sum(episode.failure is not None for episode in episodes)
    if not scored and any(settings.task_judge.list_judges()):
        return (
            "no episode has a reward, because the judge returned None for each. None leaves an episode out of "
            "training; return 0 for a wrong answer"
        )
    if not scored:
        return (
            "no episode has a reward: set a judge (ajet.task_judge.judge_protocol) or models that rank attempts "
            "(ajet.task_judge.judges), or return a reward in WorkflowOutput"
        )
    if 2 * failed_count >= len(episodes):
        return (
            f"{failed_count} of {counted(len(episodes), 'episode')} failed: correct the code that the hints above name"
        )
    replies, limits = _count_cut_replies(episodes)
    if replies and limits.total() == replies:
        return f"every reply was cut short, so that no answer can be right: raise {_name_limits(limits, settings)}"
    successes = [
        episode.verdict.success for episode in scored if episode.verdict and episode.verdict.success is not None
    ]
    positive_count = sum((episode.reward or 0.0) > 0 for episode in scored)
    if not (any(successes) if successes else positive_count):
        return advise_given_answers(settings)
    if settings.rollout.num_repeat == 1:
        return "training compares several attempts at each task: set ajet.rollout.num_repeat to 4 or more"
    if settings.rollout.temperature == 0:
        return "at temperature 0 all attempts at a task are equal: set ajet.rollout.temperature to 1.0"
    if positive_count == len(scored):
        return (
            "all attempts at a task have the same reward, above 0: use harder tasks, or a judge with more levels "
            "of reward"
        )
    return "try more tasks (ajet.debug.debug_first_n_tasks) or more attempts (ajet.rollout.num_repeat)"


def _name_limits(limits: Counter[str], settings: AjetConfig) -> str:
    """Return the key and value of the limit that cut replies, or "those limits" if there are several."""
    if len(limits) > 1:
        return "those limits"
    (limit,) = limits
    value = getattr(settings.rollout, limit.removeprefix("rollout."), None) if limit.startswith("rollout.") else None
    return f"ajet.{limit} (now {value})" if isinstance(value, int) else limit
