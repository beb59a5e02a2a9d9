"""Checks of a training start that need no model, run folder or port, so plans and `config validate` share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.commands.runner import load_algorithm, load_runner
from ajet.config.idle import list_user_layers
from ajet.config.plugins import find_part, list_packages
from ajet.config.references import parse_reference
from ajet.config.schema.choices import is_reference
from ajet.config.unread_sections import JUDGE, find_unread_keys
from ajet.engine.drivers import find_driver
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError, UserError

_EXPORTING = ("ajet", "ajet.workflow")

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.store import Address


def require_launchable(experiment: Experiment, from_store: Address | None = None, *, here: bool = False) -> None:
    """Raise UserError for everything wrong with a training start that can be found without model, run folder or port.

    Args:
        from_store: Store of episodes that samplers play. None: this command plays them.
        here: True if the run is for this machine.
    """
    refuse_untrainable(experiment, remote=from_store is not None)
    if here and "trains" not in experiment.backbone.can and experiment.ajet.rollout.engine != "endpoint":
        find_driver(experiment.ajet).require_machine(experiment.ajet)
    if "trains" in experiment.backbone.can:
        load_runner(experiment.backbone).check(experiment, from_store=from_store, here=here)
        if experiment.ajet.sft.objective is None:
            require_teacher(experiment)
    if experiment.ajet.sft.objective is None and from_store is None:
        require_rewards(experiment)


def refuse_untrainable(experiment: Experiment, *, remote: bool = False) -> None:
    """Raise UserError if the algorithm, the curriculum or the engine makes training impossible. Debug runs pass.

    Args:
        remote: True if sampler processes, which have no access to a teacher model, run the attempts.
    """
    if "trains" not in experiment.backbone.can:
        return
    algorithm = load_algorithm(experiment)
    if remote and "teacher" in algorithm.needs:
        raise UserError(
            f"{algorithm.name} asks a teacher model about each attempt, which is only possible if this command "
            "runs the agent itself.",
            where="ajet.trainer_common.algorithm.adv_estimator",
            do=f"train with `{format_command('--conf', 'FILE.yaml')}`, without clients, samplers and shared stores",
        )
    if (remote or experiment.ajet.trainer_common.mode == "async") and experiment.ajet.data.curriculum.prefer:
        raise UserError(
            "A curriculum (data.curriculum) chooses tasks by earlier results, but remote samplers choose their "
            "tasks before the results are known.",
            where="ajet.data.curriculum.prefer",
            expected="null, or a run that starts the agent itself (mode: sync)",
        )
    if experiment.ajet.rollout.engine == "endpoint":
        raise UserError(
            "An endpoint returns text without the sampled token ids, so training is not possible.",
            where="ajet.rollout.engine",
            expected="rollout.engine: auto, transformers or vllm for training",
            do="to run the agent without training, use --backbone debug with this engine",
        )


_TEACHERS = frozenset({"teacher", "distribution", "privileged"})
"""Needs of algorithms that learn without a reward."""


def require_teacher(experiment: Experiment) -> None:
    """Raise UserError if the algorithm needs a teacher model that is missing. Loads no weights."""
    needed_kinds = load_algorithm(experiment).needs & {"teacher", "distribution"}
    if needed_kinds and experiment.ajet.trainer_common.algorithm.teacher.path is not None:
        from ajet.backbone.local.requirements import teacher_source

        teacher_source(experiment, weights=False)


def _is_shipped(workflow: str) -> bool:
    """Return True for a reference to code that ships with ajet.

    Names that users import from `ajet` or `ajet.workflow` do not count.
    """
    module = parse_reference(workflow).place if is_reference(workflow) else ""
    return module.partition(".")[0] in list_packages() and module not in _EXPORTING


def require_rewards(experiment: Experiment) -> None:
    """Raise ConfigError if nothing gives rewards: a workflow of ajet's own that sets none, without judge or scorer.

    A user's own workflow passes, because its code may return a reward. So does an algorithm that learns from a teacher.
    """
    from ajet.rollout.components import load_workflow
    from ajet.task_judge import open_judge
    from ajet.task_reader import open_reader

    judge, workflow = experiment.ajet.task_judge, experiment.ajet.rollout.user_workflow
    if workflow is None or not (find_part("workflow", workflow) or _is_shipped(workflow)):
        return  # a user's own code may return a reward
    has_own_judge_type = judge.judge_type != "customized_protocol"
    if has_own_judge_type or judge.judge_protocol or judge.scorer or judge.scorers or judge.stages:
        return
    reader = find_part("reader", experiment.ajet.task_reader.type)
    if reader is not None and reader.scorer:
        return
    if "trains" in experiment.backbone.can and load_algorithm(experiment).needs & _TEACHERS:
        return
    if not load_workflow(experiment).needs_judge(experiment.config):
        return
    opened_judge = open_judge(experiment, reader_judge=open_reader(experiment).judge)
    opened_judge.let_go()
    if opened_judge.judges:
        return
    reward_key = next((key for key in find_unread_keys(list_user_layers(experiment.layers)) if key.ours == JUDGE), None)
    raise ConfigError(
        f"The workflow {workflow} sets no reward, and no judge is set that computes one.",
        where=experiment.layers.locate(("ajet", "rollout", "user_workflow"), value=True),
        expected=f"{JUDGE}: reward.py->reward, or ajet.task_judge.scorer",
        do=f"set {JUDGE}: {reward_key.value}" if reward_key else "see docs/judges.md and docs/scorers.md",
    )
