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
    """Return True for a function with a scorer's parameters: `model_answer`, `solution_str` or `ground_truth`."""
    if not is_function(found):
        return False
    return not _SCORER_PARAMETERS.isdisjoint(read_parameters(found))


class BoundScorer:
    """Calls one scorer with the values that its parameter names request. Thread-safe."""

    def __init__(
        self, found: Any, name: str, arguments: Mapping[str, Any], experiment: Experiment, *, key: str
    ) -> None:
        """Bind a scorer.

        Args:
            found: A function, or a class constructed with the composed config and `arguments` (or by its
                `of_experiment`). An instance is called, or its `compute_reward` if it has one.
            name: Name of the scorer, for errors and the record.
            arguments: Settings of the scorer, by parameter name.
            key: Configuration key that names the scorer.

        Raises:
            ConfigError: the scorer cannot be constructed, or has parameters that ajet cannot fill.
        """
        from ajet.task_judge.trl_reward import adapt_trl_reward, is_trl_reward

        self.name = name
        self._key_name = key
        self._gamma = experiment.ajet.rollout.gamma
        self._is_agentrl_function = False
        if isinstance(found, type):
            instance = self._create_instance(found, experiment, arguments)
            compute_reward = getattr(instance, "compute_reward", None)
            self._function: Callable[..., Any] = compute_reward if callable(compute_reward) else instance
            self._arguments: Mapping[str, Any] = {}
            if callable(compute_reward):  # a judge, whose parameters may have any names
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
        """Call the scorer with the requested values of an attempt and return its verdict.

        Without a required reference there is no score; without a required answer the score is 0.

        Raises:
            JudgeFailure: the scorer raised an exception or returned no score.
            BoundaryError: as raised by the scorer.
        """
        positional_arguments: list[Any] = []
        keyword_arguments = dict(self._arguments)
        if call.ground_truth is None and any(
            argument == REFERENCE and required for _, argument, required in self._bound_parameters
        ):
            return Verdict(None, None, f"no score: task {call.task.task_id} has no answer to compare with")
        for parameter, argument, required in self._bound_parameters:
            value = ARGUMENTS[argument](call)
            if argument == REFERENCE and self._is_agentrl_function and value is not None:
                value = {"query": call.task.main_query, "answer": value}
            if value is None and not required and parameter:
                continue  # the parameter's default holds
            if value is None and required and argument in (ANSWER, "reply"):
                return Verdict(0.0, False, NO_ANSWER)
            if parameter:
                keyword_arguments[parameter] = value
            else:
                positional_arguments.append(value)
        try:
            judgement = await call_user_function(partial(self._function, *positional_arguments, **keyword_arguments))
        except (BoundaryError, UserError):
            raise
        except Exception as error:
            advice = advise_on(error, call.task, call.workflow_output)
            message = f"the scorer {self.name} raised {type(error).__name__}: {error}"
            raise JudgeFailure(f"{message} ({advice})" if advice else message) from error
        return read_verdict(judgement, f"the score of {self.name}", gamma=self._gamma)

    def let_go(self) -> None:
        """Close the scorer's connections and processes, if the scorer or the object of a bound method has `let_go`."""
        let_go = getattr(getattr(self._function, "__self__", self._function), "let_go", None)
        if let_go is not None:
            let_go()

    def _create_instance(self, kind: type[Any], experiment: Experiment, arguments: Mapping[str, Any]) -> Any:
        """Construct a scorer class by its `of_experiment`, else with the config and the arguments.

        Raises ConfigError.
        """
        of_experiment = getattr(kind, "of_experiment", None)
        try:
            if of_experiment is not None:
                return of_experiment(experiment, **arguments)
            return kind(experiment.config, **arguments)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(
                f"The scorer {self.name} could not be created: {type(error).__name__}: {error}",
                where=self._key_name,
                expected="a class whose constructor takes the configuration and the keys of `arguments`",
            ) from error

    def _bind_parameters(self) -> list[tuple[str, str, bool]]:
        """Return how to fill each parameter of the scorer that the settings do not fill.

        Returns:
            For each parameter (its name, or "" to pass by position; key in `call.ARGUMENTS` of its value; True if
            required).

        Raises:
            ConfigError: a setting is no parameter, or a required parameter is unknown.
        """
        try:
            parameters = [*inspect.signature(self._function).parameters.values()]
        except (TypeError, ValueError):  # a function written in C may have no signature
            return [("", ANSWER, True), ("", REFERENCE, True)]
        named_parameters = [
            parameter
            for parameter in parameters
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        unknown = [
            argument
            for argument in self._arguments
            if argument not in {parameter.name for parameter in named_parameters} and not takes_all
        ]
        if unknown:
            known_names = (
                ", ".join(parameter.name for parameter in named_parameters if parameter.name not in ARGUMENTS) or "none"
            )
            raise self._signature_error(f"has no argument {', '.join(unknown)}; it takes {known_names}")
        unset = [parameter for parameter in named_parameters if parameter.name not in self._arguments]
        required = [parameter for parameter in unset if parameter.default is parameter.empty]
        unknown_parameters = [parameter for parameter in required if parameter.name not in ARGUMENTS]
        # Two required parameters under names of their own are (model_answer, ground_truth).
        if unknown_parameters and len(required) == 2 == len(unknown_parameters):
            return [(_keyword_name(required[0]), ANSWER, True), (_keyword_name(required[1]), REFERENCE, True)]
        if unknown_parameters:
            names = [parameter.name for parameter in unknown_parameters]
            verl_names = {parameter.name for parameter in named_parameters} & {*VERL_PARAMETERS}
            do = f"name the parameters as verl passes them: ({', '.join(VERL_PARAMETERS)})" if verl_names else ""
            raise self._signature_error(f"has the parameters {', '.join(names)}, which ajet does not know", do)
        if not named_parameters:  # only **kwargs, which get what verl passes
            return [(name, name, name == REFERENCE) for name in VERL_PARAMETERS] if takes_all else []
        return [
            (_keyword_name(parameter), parameter.name, parameter.default is parameter.empty)
            for parameter in unset
            if parameter.name in ARGUMENTS
        ]

    def _signature_error(self, problem: str, do: str = "") -> ConfigError:
        """Return the error for a scorer that cannot be called, at the function's line.

        Args:
            problem: What is wrong, to follow the scorer's name.
            do: Advice; "" for the general one.
        """
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        return ConfigError(
            f"The scorer {self.name} {problem}.",
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
    """Return the name to pass a parameter by, or "" if the parameter is positional only."""
    return "" if parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
