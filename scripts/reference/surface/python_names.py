"""The names that users import, with their signatures."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ajet
from scripts.reference.surface.signatures import describe

_RESULTS = {
    "Endpoint": "ajet.schema.endpoint:Endpoint",
    "ToolUse": "ajet.schema.tool_use:ToolUse",
    "Sandbox": "ajet.schema.sandbox:Sandbox",
    "GymEnv": "ajet.environment.services.gym_env:GymEnv",
    "Verdict": "ajet.schema.episode:Verdict",
    "Tuned": "ajet.commands.job:Tuned",
    "RecordedEpisode": "ajet.schema.episode:Episode",
}
"""What public functions return and take and no package exports: how these lines call it, and where it is defined."""
_IMPORTED = (
    *("ajet.workflow:*", "ajet.task_judge:*", "ajet.task_judge.base_judge:BaseJudge"),
    *("ajet.task_judge.env_service_as_judge:EnvServiceJudge", "ajet.task_judge.math_judge:MathAnswerJudge"),
    *("ajet.task_judge.extraction:boxed_answer", "ajet.task_judge.extraction:extract_answer"),
    *("ajet.task_judge.extraction:hash_answer", "ajet.task_judge.math_equality:equal"),
    *("ajet.schema.task:Task", "ajet.schema.task:WorkflowTask", "ajet.schema.task:WorkflowOutput"),
    *("ajet.schema.errors:UserError", "ajet.schema.errors:RunFailed", "ajet.schema.errors:JudgeFailure"),
    *("ajet.task_reader:TaskReader", "ajet.record.trackers:Tracker", "ajet.record.trackers:TrackedRun"),
    *("ajet.config.backbones:Descriptor", "ajet.backbone.contract:Backbone", "ajet.train.runner:Runner"),
    *("ajet.store:Store", "ajet.store:RunStore", "ajet.store:open_shared", "ajet.store:Policy"),
    *("ajet_proof:prove", "ajet_trl:TrlTrainer"),
)
"""Further names that pages, tutorials and INTERFACE name; `*`: all that the package exports."""
_OLDER = (
    "train.adapter.verl.aworld_agent_loop.AworldAgentLoop = ajet_aworld.agent_loop:AworldAgentLoop",
    "train.trainer.agent_trainer.AgentTrainer = ajet_aworld.trainer.agent_trainer:AgentTrainer",
    "train.trainer.trainer_processor.TrainerProcessor = ajet_aworld.trainer.trainer_processor:TrainerProcessor",
    "train.adapter.common.get_agent_tool_env_and_servers = ajet_aworld.tool_environment:get_agent_tool_env_and_servers",
    "gaia_reward_func = ajet.task_judge.scorers.gaia:gaia_reward_func",
)
"""AWorld's names with members or signatures: how its users import them, and where they are defined."""
_OLDER_FOLDERS = (
    "train",
    "env",
    "ajet/utils",
    "ajet/task_rollout",
    "ajet/copilot",
    "ajet/tuner.py",
    "ajet/launcher.py",
)


def list_package(root: Path) -> Iterator[str]:
    """Yield the lines of `ajet.__all__`."""
    yield from _list_exports(ajet)


def list_client(root: Path) -> Iterator[str]:
    """Yield the lines of `ajet.client`."""
    yield from _list_exports(import_module("ajet.client"))


def list_record(root: Path) -> Iterator[str]:
    """Yield the lines of `ajet.record`."""
    yield from _list_exports(import_module("ajet.record"))


def list_tune(root: Path) -> Iterator[str]:
    """Yield the public names that the module of `ajet.tune` defines."""
    module = import_module(ajet.tune.__module__)
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            yield from describe(f"ajet.tune: {name}", value)
    yield from describe("ajet.tune: Tasks", module.Tasks)


def list_results(root: Path) -> Iterator[str]:
    """Yield the classes that public functions return and take."""
    for name, place in _RESULTS.items():
        yield from describe(name, _load(place))


def list_imported_names(root: Path) -> Iterator[str]:
    """Yield the lines of further names that users import."""
    for place in _IMPORTED:
        module, _, name = place.partition(":")
        if name == "*":
            yield from _list_exports(import_module(module))
        else:
            yield from _describe_once(f"{module}.{name}", _load(place))


def list_older_names(root: Path) -> Iterator[str]:
    """Yield the modules' public names as the files write them, and the members of those that users call or extend."""
    for folder in _OLDER_FOLDERS:
        place = root / folder
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            yield f"module {module}"
            yield from (f"{module}.{name}" for name in _list_written(ast.parse(file.read_text(encoding="utf-8"))))
    for line in _OLDER:
        public, _, definition = line.partition(" = ")
        yield from describe(public, _load(definition))


def _list_exports(module: ModuleType) -> Iterator[str]:
    for name in module.__all__:
        yield from _describe_once(f"{module.__name__}.{name}", getattr(module, name))


def _describe_once(public: str, value: Any) -> Iterator[str]:
    """Yield the lines of a name, or one that says which name of `ajet` it is another of."""
    first = next((f"ajet.{name}" for name in ajet.__all__ if getattr(ajet, name) is value), public)
    yield from describe(public, value) if first == public else [f"{public} = {first}"]


def _list_written(tree: ast.Module) -> Iterator[str]:
    """Yield what a file defines or imports under an explicit name (`import X as X`)."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (each.asname for each in node.names if each.asname and not each.asname.startswith("_"))
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            yield from ast.literal_eval(node.value) if target.id == "__all__" else [target.id] * (target.id[0] != "_")


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
