"""`task_judge`: who decides the reward when the workflow leaves it open."""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import Section, key


class WeightedScorer(Section):
    """One of several scorers."""

    name: str = key("", "A scorer's name, or a reference to a function.", min_length=1)
    weight: float = key(1.0, "The reward is the sum of weight times score; 0: recorded only.")
    arguments: dict[str, Any] = key({}, "Arguments beside those of the attempt.")


class Stage(Section):
    """From when on, or for which tasks, another scorer decides."""

    scorer: str = key("", "Its name, or a reference.", min_length=1)
    from_step: int = key(0, "Training step from which on.", ge=0)
    tag: str | None = key(None, "Only tasks with this tag (`tag` or `tags` of their row); null: all.")
    arguments: dict[str, Any] = key({}, "Arguments beside those of the attempt.")


class TaskJudge(Section):
    """Who decides the reward when the workflow leaves it open."""

    judge_type: str = key(
        "customized_protocol",
        "One of {names}. customized_protocol calls the class or function named by `judge_protocol`, or the scorers.",
        named="judge",
    )
    judge_protocol: str | None = key(
        None,
        "Reference to a BaseJudge or a function `(task, output)`, e.g. `judge.py->MyJudge`; null where the workflow "
        "sets the reward itself.",
        kind="reference",
    )
    scorer: str | None = key(
        None,
        "In place of `judge_protocol`: one of {names}, a name that your code registers, or a reference to a function "
        "(`scorer.py->mine`). See docs/scorers.md.",
        kind="reference",
        lists="scorer",
    )
    scorers: list[WeightedScorer] = key(
        [],
        "Several, weighted: `{name, weight, arguments}` each. The reward is the sum of weight times score; each score "
        "is recorded.",
    )
    stages: list[Stage] = key(
        [],
        "Another scorer from a training step on, or for tasks with a tag: `{from_step, tag, scorer, arguments}` each. "
        "The last that matches decides; where none does, the scorer of the row or the ones above.",
    )
    answer_schema: Literal["answer", "boxed"] | None = key(
        None,
        "Where the answer stands in a reply, for scorers and the agent `mcp_agent`, unless the task's own "
        "`answer_schema` says: in `<answer>` tags, or in `\\boxed{}`; null: whichever of these a reply has, or all "
        "of it.",
    )
    alien_llm_model: str = key("qwen3-235b-a22b-instruct-2507", "For judges to read: a model to ask.")
    alien_llm_response_length: int = key(512, "For judges to read: tokens of its reply.", ge=1)

    def named(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The judges and scorers that decide by this, a name or a reference each, with its path below `ajet`."""
        found: list[tuple[tuple[str | int, ...], str | None]] = [
            (("task_judge", "judge_protocol"), self.judge_protocol),
            (("task_judge", "scorer"), self.scorer),
            *((("task_judge", "scorers", index, "name"), each.name) for index, each in enumerate(self.scorers)),
            *((("task_judge", "stages", index, "scorer"), each.scorer) for index, each in enumerate(self.stages)),
        ]
        return [(path, name) for path, name in found if name]

    def deciding(self, *, judge_protocol: str | None = None, scorer: str | None = None) -> TaskJudge:
        """A copy of these settings with this judge or this scorer, and no other."""
        chosen: dict[str, Any] = {"judge_protocol": judge_protocol, "scorer": scorer, "scorers": [], "stages": []}
        return self.model_copy(update={"judge_type": "customized_protocol", **chosen})
