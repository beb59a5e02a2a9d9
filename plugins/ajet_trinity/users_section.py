"""Checks the keys of the user's `trinity:` section.

Invariant: keys owned by ajet on the Trinity backbone (`OWNED`) are refused. An unknown key is an error with the nearest
name. Trinity's keys are read as text, without an import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

OWNED: Mapping[str, str] = {
    "project": "ajet.project_name",
    "group": "",
    "name": "ajet.experiment_name",
    "ray_namespace": "",
    "checkpoint_root_dir": "ajet.trainer_common.checkpoint_base_dir",
    "checkpoint_job_dir": "ajet.trainer_common.checkpoint_base_dir",
    "continue_from_checkpoint": "ajet.trainer_common.resume",
    "stages": "",
    "model.model_path": "ajet.model.path",
    "model.temperature": "ajet.rollout.temperature",
    "model.top_p": "ajet.rollout.top_p",
    "model.top_k": "ajet.rollout.top_k",
    "model.max_model_len": "ajet.rollout.max_model_len",
    "model.lora_configs": "",
    "model.tinker": "",
    "model.external_model": "",
    "cluster.node_num": "ajet.trainer_common.nnodes",
    "cluster.gpu_per_node": "ajet.trainer_common.n_gpus_per_node",
    "algorithm.algorithm_type": "ajet.trainer_common.algorithm.adv_estimator",
    "algorithm.repeat_times": "ajet.rollout.num_repeat",
    "algorithm.sample_strategy": "",
    "algorithm.advantage_fn": "ajet.trainer_common.algorithm.adv_estimator",
    "algorithm.policy_loss_fn": "ajet.trainer_common.algorithm.policy_loss",
    "algorithm.kl_loss_fn": "ajet.trainer_common.use_kl_loss",
    "algorithm.kl_penalty_fn": "ajet.trainer_common.algorithm.use_kl_in_reward",
    "algorithm.loss_agg_mode": "ajet.trainer_common.algorithm.loss_aggregation",
    "algorithm.rollout_correction": "ajet.trainer_common.algorithm.importance_weight_cap_ratio",
    "algorithm.bypass_old_logprobs": "ajet.trainer_common.algorithm.old_policy",
    "buffer.batch_size": "ajet.data.train_batch_size",
    "buffer.train_batch_size": "ajet.data.train_batch_size",
    "buffer.total_epochs": "ajet.trainer_common.total_epochs",
    "buffer.total_steps": "ajet.trainer_common.total_training_steps",
    "buffer.explorer_input": "ajet.task_reader",
    "buffer.trainer_input": "",
    "explorer.concurrent_mode": "ajet.rollout.isolation",
    "explorer.max_repeat_times_per_runner": "",
    "explorer.max_retry_times": "ajet.rollout.max_retries",
    "explorer.max_timeout": "ajet.rollout.episode_timeout",
    "explorer.dynamic_timeout": "ajet.rollout.episode_timeout",
    "explorer.auxiliary_models": "",
    "explorer.rollout_model.enable_openai_api": "",
    "explorer.rollout_model.engine_type": "ajet.rollout.name",
    "explorer.rollout_model.engine_num": "ajet.rollout.n_vllm_engine",
    "explorer.rollout_model.tensor_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    "explorer.over_rollout": "",
    "explorer.eval_interval": "",
    "explorer.eval_on_startup": "",
    "synchronizer.sync_style": "ajet.trainer_common.mode",
    "synchronizer.sync_interval": "",
    "synchronizer.explorer_sync_interval": "",
    "synchronizer.trainer_sync_interval": "",
    "synchronizer.sync_offset": "",
    "trainer.trainer_type": "",
    "trainer.total_steps": "ajet.trainer_common.total_training_steps",
    "trainer.save_interval": "ajet.trainer_common.save_freq",
    "trainer.max_checkpoints_to_keep": "ajet.trainer_common.max_checkpoints_to_keep",
    "monitor.monitor_type": "ajet.trainer_common.logger",
}
"""Trinity's keys that the section must not set, with the key below `ajet` to set instead.

The latter is "" if the value follows from the way in which ajet runs episodes and trains.
"""
Keys = Mapping[str, Mapping[str, str]]
"""Maps the name of a dataclass to its fields, and these to the names of their types."""
BOTH, TRAIN, EXPLORE = "both", "train", "explore"
"""Trinity's modes: explorer and trainer, trainer alone, explorer alone."""
SEPARATE_MODES = {
    TRAIN: (
        "train with --from-store ADDRESS, and run samplers. Without ajet's store, Trinity's SQL buffer would "
        "connect the two sides: it marks rows as used when they are read, not when a checkpoint contains them, "
        "and returns the newest first, so a killed trainer would lose rows, and a step would mix rows of "
        "different steps"
    ),
    EXPLORE: (
        "`ajet sample`, which runs the same episodes into a store. Trinity's own explorer would write to its SQL "
        "buffer, which marks rows as used when they are read, not when a checkpoint contains them"
    ),
}
"""Advice for each of Trinity's one-sided modes: what to use instead.

Its reasons were read in Trinity 0.6.0: `buffer/storage/sql.py`, `buffer/reader/sql_reader.py`.
"""


def find_section_errors(experiment: Experiment, wanted: str) -> Iterator[ConfigError]:
    """Yield an error for each wrong, owned or unknown key in the user's `trinity:` section.

    Args:
        wanted: Trinity's mode of the run.
    """
    user_section = experiment.backbone_overrides.get("trinity", {})
    layers = experiment.layers
    if not isinstance(user_section, Mapping):
        yield ConfigError(
            f"`trinity` is {user_section!r}.",
            where=layers.locate(("trinity",), value=True),
            expected="a mapping of Trinity's own keys",
        )
        return
    mode = user_section.get("mode")
    if mode not in (None, wanted):
        config_option, store = ("--conf", "FILE.yaml"), "sqlite:PATH"
        trains = format_command("train", *config_option, "--backbone", "trinity", "--with-ray", "--from-store", store)
        commands = f"`{trains}` and `{format_command('sample', *config_option, '--store', store)}`"
        yield ConfigError(
            f"trinity.mode is {mode!r}.",
            where=layers.locate(("trinity", "mode"), value=True),
            expected=SEPARATE_MODES.get(str(mode), f"{wanted}, or no such key"),
            do=f"run two commands that share one store: {commands}" if mode in SEPARATE_MODES else "",
        )
    for key, ajet_key in OWNED.items():
        path = tuple(key.split("."))
        if _has_key(user_section, path):
            yield ConfigError(
                f"ajet sets trinity.{key} itself.",
                where=layers.locate(("trinity", *path)),
                expected="no such key in your trinity section",
                do=f"set {ajet_key} instead" if ajet_key else "",
            )
    trinity_keys = read_trinity_keys()
    if trinity_keys:
        yield from _find_unknown(experiment, user_section, trinity_keys, "Config", ())


def _find_unknown(
    experiment: Experiment,
    section: Mapping[str, Any],
    fields_by_class: Mapping[str, Mapping[str, str]],
    class_name: str,
    section_path: tuple[str, ...],
) -> Iterator[ConfigError]:
    """Yield an error for each key of the user's section that Trinity's dataclass of the section lacks.

    Args:
        section: the section, or one nested in it.
        fields_by_class: the fields of Trinity's dataclasses, by class name.
        class_name: name of the section's dataclass.
        section_path: path of the section.
    """
    fields = fields_by_class[class_name]
    for name, value in section.items():
        path = (*section_path, str(name))
        if name not in fields:
            similar = get_close_matches(str(name), fields, 1)
            yield ConfigError(
                f"Trinity has no key {'.'.join(path)}.",
                where=experiment.layers.locate(("trinity", *path)),
                expected=", ".join(sorted(fields)),
                do=f"did you mean {similar[0]}?" if similar else "",
            )
        elif isinstance(value, Mapping) and fields[name] in fields_by_class:
            yield from _find_unknown(experiment, value, fields_by_class, fields[name], path)


@lru_cache(maxsize=1)
def read_trinity_keys() -> Keys:
    """Return the fields of Trinity's configuration, read as text. Empty if Trinity is not installed."""
    from importlib.metadata import distributions

    from ajet.schema.errors import UserError
    from ajet_trinity.package import DISTRIBUTION, require_trinity

    try:
        folder = require_trinity()
    except UserError:  # code that needs Trinity raises the error
        return {}
    search_paths = [str(folder)] if folder is not None else sys.path
    (distribution, *_) = distributions(name=DISTRIBUTION, path=search_paths)
    file = Path(str(distribution.locate_file("trinity/common/config.py")))
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_list_fields(node.body)) for node in classes}


def _list_fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield (name, type) of each annotated field in the body of a class. `Optional[X]` gives X."""
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = ast.unparse(statement.annotation)
            yield statement.target.id, kind.removeprefix("Optional[").removesuffix("]")


def _has_key(tree: Any, path: tuple[str, ...]) -> bool:
    """True if a nested mapping has a key at this path."""
    for name in path:
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True
