"""BoundScorer: a scorer (function or object) bound to the settings that fill its parameters.

Invariant: a scorer that cannot be called is an error before the run. If a required parameter needs ground truth and
there is none, there is no score and no call. Without an answer the score is 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ajet.config.functions import is_function
from ajet.schema.advice import advise_on
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, ConfigError, JudgeFailure, UserError
from ajet.task_judge.judge import call_user_function, read_verdict
from ajet.task_judge.scorers.call import ANSWER, ARGUMENTS, REFERENCE, VERL_PARAMETERS, ScorerCall, read_parameters

if TYPE_CHECKING:
    from ajet.config import Experiment

NO_ANSWER = "the reply contains no answer"
AGENTRL_PARAMETER = "scorer_agent_config"
"""Parameter that marks an AgentRL scorer: gets its config section as a dict, and `query` and `answer` as the ground
truth."""

_SCORER_PARAMETERS = frozenset({ANSWER, REFERENCE, "solution_str"})


def is_scorer_function(found: Any) -> bool:
    """True for a function with scorer parameters (an answer or a reference)."""
    if not is_function(found):
        return False
    return not _SCORER_PARAMETERS.isdisjoint(read_parameters(found))


class BoundScorer:
    """Calls one scorer with the values that its parameter names request. Thread-safe."""

    def __init__(
        self, found: Any, name: str, arguments: Mapping[str, Any], experiment: Experiment, *, key: str
    ) -> None:
        """Bind a scorer. Raises ConfigError.

        Args:
            found: a function, or a class constructed with the composed config and `arguments` (or by its
                `of_experiment`). An
                instance is called, or used as a judge.
            name: name of the scorer, for errors and the record.
            arguments: settings of the scorer, by parameter name.
            key: key that names the scorer.
        """
        from ajet.task_judge.trl_reward import adapt_trl_reward, is_trl_reward

        self.name = name
        self._key_name = key
        self._gamma = experiment.ajet.rollout.gamma
        self._is_agentrl_function = False
        if isinstance(found, type):
            instance = self._create_instance(found, experiment, arguments)
            judges = getattr(instance, "compute_reward", None)
            self._function: Callable[..., Any] = judges if callable(judges) else instance
            self._arguments: Mapping[str, Any] = {}
            if callable(judges):
                self._bound_parameters = [("", "workflow_task", True), ("", "workflow_output", True)]
                return
        elif is_trl_reward(found):
            self._function, self._arguments = adapt_trl_reward(partial(found, **arguments), name, key=key), {}
            self._bound_parameters = [("", "task", True), ("", "output", True)]
            return
        else:
            self._function, self._arguments = found, dict(arguments)
        if not callable(self._function):
            raise self._signature_error(f"is a {type(found).__name__}")
        self._is_agentrl_function = AGENTRL_PARAMETER in read_parameters(self._function)
        if self._is_agentrl_function:
            self._arguments = {AGENTRL_PARAMETER: _scorer_agent(experiment), **self._arguments}
        self._bound_parameters = self._bind_parameters()

    async def score(self, call: ScorerCall) -> Verdict:
        """Score one call. Raises JudgeFailure, or the BoundaryError of the scorer."""
        by_position: list[Any] = []
        by_name = dict(self._arguments)
        if call.ground_truth is None and any(
            argument == REFERENCE and required for _, argument, required in self._bound_parameters
        ):
            return Verdict(None, None, f"no score: task {call.task.task_id} has no answer to compare with")
        for parameter, argument, required in self._bound_parameters:
            value = ARGUMENTS[argument](call)
            if argument == REFERENCE and self._is_agentrl_function and value is not None:
                value = {"query": call.task.main_query, "answer": value}
            if value is None and not required and parameter:
                continue  # its own default
            if value is None and required and argument in (ANSWER, "reply"):
                return Verdict(0.0, False, NO_ANSWER)
            if parameter:
                by_name[parameter] = value
            else:
                by_position.append(value)
        try:
            judgement = await call_user_function(partial(self._function, *by_position, **by_name))
        except (BoundaryError, UserError):
            raise
        except Exception as problem:
            advice = advise_on(problem, call.task, call.workflow_output)
            message = f"the scorer {self.name} raised {type(problem).__name__}: {problem}"
            raise JudgeFailure(f"{message} ({advice})" if advice else message) from problem
        return read_verdict(judgement, f"the score of {self.name}", gamma=self._gamma)

    def let_go(self) -> None:
        let_go = getattr(getattr(self._function, "__self__", self._function), "let_go", None)
        if let_go is not None:
            let_go()

    def _create_instance(self, kind: type[Any], experiment: Experiment, arguments: Mapping[str, Any]) -> Any:
        of_experiment = getattr(kind, "of_experiment", None)
        try:
            if of_experiment is not None:
                return of_experiment(experiment, **arguments)
            return kind(experiment.config, **arguments)
        except UserError:
            raise
        except Exception as problem:
            raise ConfigError(
                f"The scorer {self.name} could not be created: {type(problem).__name__}: {problem}",
                where=self._key_name,
                expected="a class whose constructor takes the configuration and the keys of `arguments`",
            ) from problem

    def _bind_parameters(self) -> list[tuple[str, str, bool]]:
        """Return (parameter name or "" if positional, name of the passed value, is required) for each parameter."""
        try:
            parameters = [*inspect.signature(self._function).parameters.values()]
        except (TypeError, ValueError):  # a function written in C may have no signature
            return [("", ANSWER, True), ("", REFERENCE, True)]
        plain = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        unknown = [
            argument
            for argument in self._arguments
            if argument not in {parameter.name for parameter in plain} and not takes_all
        ]
        if unknown:
            takes = ", ".join(each.name for each in plain if each.name not in ARGUMENTS) or "none"
            raise self._signature_error(f"has no argument {', '.join(unknown)}; it takes {takes}")
        open_ones = [each for each in plain if each.name not in self._arguments]
        required = [one for one in open_ones if one.default is one.empty]
        strange = [each for each in required if each.name not in ARGUMENTS]
        if strange and len(required) == 2 == len(strange):  # (model_answer, ground_truth) under names of their own
            return [(_keyword_name(required[0]), ANSWER, True), (_keyword_name(required[1]), REFERENCE, True)]
        if strange:
            names = [each.name for each in strange]
            like_verls = {each.name for each in plain} & {*VERL_PARAMETERS}
            do = f"name the parameters as verl passes them: ({', '.join(VERL_PARAMETERS)})" if like_verls else ""
            raise self._signature_error(f"has the parameters {', '.join(names)}, which ajet does not know", do)
        if not plain:
            return [(name, name, name == REFERENCE) for name in VERL_PARAMETERS] if takes_all else []
        return [(_keyword_name(one), one.name, one.default is one.empty) for one in open_ones if one.name in ARGUMENTS]

    def _signature_error(self, key: str, do: str = "") -> ConfigError:
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        return ConfigError(
            f"The scorer {self.name} {key}.",
            where=f"{code.co_filename}:{code.co_firstlineno}" if code is not None else self._key_name,
            expected=f"a function whose parameters are named {', '.join(ARGUMENTS)}, or that takes the answer and the "
            "reference answer by position",
            do=do or f"correct {self._key_name}, or the function",
        )


def _scorer_agent(experiment: Experiment) -> dict[str, Any]:
    """Return the section `scorer_agent` of AgentRL's file, or {} without such a file. Raises ConfigError."""
    from ajet.environment.chat_model import plain_section

    agent_config = experiment.ajet.environment.agent_config
    return plain_section(agent_config, experiment.base, "scorer_agent")[1] if agent_config else {}


def _keyword_name(parameter: inspect.Parameter) -> str:
    return "" if parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
