"""Translates arguments of AgentJetJob and `ajet.tune` to keys below `ajet` of a YAML.

Invariants: the argument names are AgentJet's, and each stands for one key, so a check of the key also covers the name.
A run that resolves a reference to a class or function finds the same object, or the reference is refused. Code of a
file is named by the file. Code of the running program or notebook is named by `__main__`, which no other process can
find.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from ajet.config.plugins import find_all_parts, find_part
from ajet.schema.errors import UserError

KEYS: Mapping[str, str] = {
    "backbone": "backbone",
    "model": "model.path",
    "n_gpu": "trainer_common.n_gpus_per_node",
    "algorithm": "trainer_common.algorithm.adv_estimator",
    "n_gpu_for_infer": "rollout.n_vllm_engine",
    "name": "experiment_name",
    "experiment_name": "experiment_name",
    "experiment_dir": "experiment_dir",
    "project_name": "project_name",
    "logging": "trainer_common.logger",
    "num_repeat": "rollout.num_repeat",
    "batch_size": "data.train_batch_size",
    "max_env_worker": "rollout.max_env_worker",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
    "max_response_length_in_one_turn": "rollout.max_response_length_in_one_turn",
    "max_model_len": "rollout.max_model_len",
    "mini_batch_num": "trainer_common.mini_batch_num",
    "lora_rank": "trainer_common.lora.rank",
    "lora_alpha": "trainer_common.lora.alpha",
    "lora_target_modules": "trainer_common.lora.target_modules",
    "lora_load_format": "lora.load_format",
    "layered_summon": "lora.layered_summon",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "lr": "trainer_common.optim.lr",
    "ppo_epochs": "trainer_common.ppo_epochs",
    "compute_madness_checklist": "rollout.compute_madness_checklist",
    "swarm_mode": "enable_swarm_mode",
    "swarm_mode_sample_collection_method": "swarm_mode_sample_collection_method",
}
"""`lora.load_format`, `lora.layered_summon` and the keys of swarm mode are accepted and reported to have no effect.
`ppo_epochs` may only be 1.
"""


def collect_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of AgentJetJob's arguments by the dotted key each sets, without arguments that are None.

    Raises:
        UserError: Two arguments of the same key have different values.
    """
    collected: dict[str, tuple[str, Any]] = {}
    for name, value in arguments.items():
        if name not in KEYS or value is None:
            continue
        first_name, first_value = collected.setdefault(KEYS[name], (name, value))
        if first_value != value:
            raise UserError(
                f"{first_name}={first_value!r} and {name}={value!r} set the same key twice.",
                where=f"ajet.{KEYS[name]}, as given in Python",
                do="pass only one of them",
            )
    return {key: value for key, (_, value) in collected.items()}


def make_reference(code: Any) -> str:
    """Return the reference to a class or function, such as `/path/workflow.py->MyWorkflow`.

    A text is returned unchanged.

    Raises:
        UserError: No reference can name the code, as for a class within a function.
    """
    if isinstance(code, str):
        return code
    name = getattr(code, "__qualname__", repr(code))
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if file is None and module is sys.modules["__main__"]:  # a notebook
        return str(make_live_reference(code))
    if file is None or not name.isidentifier():
        raise UserError(
            f"{name} cannot be named by a reference, so other processes could not import it.",
            expected="a class or function at the top level of a file",
            do="move it to the top level of a file, or pass a reference such as workflow.py->MyWorkflow",
        )
    return f"{Path(file).resolve()}->{name}"


def make_live_reference(code: Any) -> Any:
    """Return a reference into the running program for the program's own code, and any other code unchanged.

    Loading the program's file instead would run the program again.

    Raises:
        UserError: The code has no name in the program, or the name was rebound.
    """
    if getattr(code, "__module__", None) != "__main__":
        return code
    name = getattr(code, "__qualname__", repr(code))
    if getattr(sys.modules["__main__"], name, None) is not code:
        raise UserError(
            f"{name} cannot be named by a reference.",
            expected="a class or function at the top level of the program or notebook, under its own name",
            do="define it at the top level with `def` or `class`",
        )
    return f"__main__->{name}"


def list_paths(files: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    """Return one or several paths as a list of texts, or None for None."""
    if files is None:
        return None
    return [str(file) for file in ([files] if isinstance(files, (str, Path)) else files)]


SHORT_NAMES = {
    "hf": "huggingface_dat_repo",
    "huggingface": "huggingface_dat_repo",
    "jsonl": "jsonl_dataset_file",
    "dataset_file": "jsonl_dataset_file",
    "dummy": "random_dummy",
}
DEFAULT_SPLITS = ("train", "test")
"""AgentJet's default splits, ignored for readers without splits."""
_FILE_ENDINGS = (".jsonl", ".json", ".parquet", ".csv")


class ReaderFields(NamedTuple):
    """Which keys in a task reader's section take the path and the splits of `AgentJetJob.set_data`."""

    path: str
    splits: tuple[str, str] | None = None
    """Keys of the names of both splits."""
    held_out: str | None = None
    """Key of the held-out file, if each split is a file."""
    folders: bool = False
    """True if the file may be FOLDER/SPLIT."""


_HUB, _FILE = ("training_split", "validation_split"), ("training.file_path", None, "validation.file_path")
_COPY = ReaderFields(*_FILE, folders=True)
READER_FIELDS: Mapping[str, ReaderFields] = {
    "huggingface_dat_repo": ReaderFields("dataset_path", _HUB),
    "jsonl_dataset_file": ReaderFields(*_FILE),
    "agentrl": ReaderFields(*_FILE),
    "gsm8k": _COPY,
    "math": _COPY,
    "gaia": _COPY,
    "hotpotqa": _COPY,
    "env_service": ReaderFields("env_url", _HUB),
}
"""Readers with a path and splits. For other readers the path is the required key, if any."""


def collect_reader_keys(reader: str, path: str, training: str | None, validation: str | None) -> dict[str, Any]:
    """Return the keys below `task_reader` and their values for the arguments of `set_data`.

    Raises:
        UserError: The reader has no key for the path or a split.
    """
    reader = SHORT_NAMES.get(reader, reader)
    keys = _find_keys(reader)
    if keys is None:
        if path:
            raise _refuse_value("path", path, reader)
        keys = ReaderFields("")
    values: dict[str, Any] = {keys.path: path} if path else {}
    if keys.splits is not None:
        values |= {key: split for key, split in zip(keys.splits, (training, validation), strict=True) if split}
    elif keys.held_out is not None:
        values[keys.path] = _find_file(path, training, reader, "train", keys) or path or None
        values[keys.held_out] = _find_file(path, validation, reader, "test", keys)
    else:
        for split, default in zip((training, validation), DEFAULT_SPLITS, strict=True):
            if split not in (None, default):
                raise _refuse_value("split", split, reader)
    return {"type": reader, **{f"{reader}.{key}": value for key, value in values.items()}}


def _find_keys(reader: str) -> ReaderFields | None:
    """Return the keys of a reader's section for path and splits, or None if the reader has none."""
    if reader in READER_FIELDS:
        return READER_FIELDS[reader]
    part = find_part("reader", reader)
    return ReaderFields(part.first_key[0]) if part is not None and part.first_key is not None else None


def _find_file(path: str, split: str | None, reader: str, default: str, keys: ReaderFields) -> str | None:
    """Return the file of a split for a reader that has a file per split, or None for the default split.

    Args:
        path: The argument `dataset_path`: a file, or a folder with a file per split.
        split: The split's name or file. None: not set.
        reader: Name of the reader, for the error.
        default: Name of the default split.
        keys: The reader's keys.

    Raises:
        UserError: The reader has no such split.
    """
    if split is None or split.endswith(_FILE_ENDINGS) or "/" in split:
        return split
    if keys.folders and path and not path.endswith(_FILE_ENDINGS):
        return str(PurePath(path) / split)
    if split != default:
        raise _refuse_value("split", split, reader)
    return None


def _refuse_value(what: str, value: str, reader: str) -> UserError:
    """Return the error for a path or split that a reader cannot use.

    Args:
        what: "path" or "split".
    """
    names = ", ".join(name for name in find_all_parts("reader") if _find_keys(name))
    return UserError(
        f"The reader {reader} has no key for the {what} {value!r}.",
        where="set_data",
        expected=f"a separate file for each split; or one of the readers with {what}s: {names}"
        if what == "split"
        else f"one of the readers with such a key: {names}",
        do="omit it, and set the reader's own keys with `set(task_reader__…)`",
    )
