"""Keys of other versions' YAMLs outside of the schema, by name and treatment.

Invariant: no code reads these keys. ACCEPTED keys may have any value and no effect, and are reported. FIXED keys
describe present behaviour at a single value and are refused at other values. MOVED keys are other names of ajet's keys:
values are read under the new name, with their places in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_NO_SWITCH = "the key is not needed: every client library can reach the gateway"
_IN_PROCESS = "the debug backbone's engine runs inside this process"
_OTHERS_TESTS = "it is a switch for another system's own tests"
_JUDGES_MODEL = "judges read it from `task_judge`"
_SERVED = "`ajet serve` serves remote agents"
_RECORDED = "every episode is recorded in the run folder's `episodes/`"
_ALL_EXAMPLES = "all examples are used, until a stop rule applies"

_TRACING = "feedback_tracing"

ACCEPTED: Mapping[str, str] = {
    "rollout.mode": "requests are always asynchronous",
    "rollout.step_skip_action": "failed episodes are counted and left out; a step is never skipped as a whole",
    "context_tracker.timeline_merging_policy.timeline_compare_level": "ajet joins calls whose token ids are equal; it "
    "first compares a request's text with the sampled text",
    "context_tracker.fix_retokenization_drift": "replies are stored as the exact sampled ids, so no drift occurs",
    "context_tracker.alien_llm_model": _JUDGES_MODEL,
    "context_tracker.alien_llm_response_length": _JUDGES_MODEL,
    "task_reader.feedback_tracing.train_output_path": "each start reads the traces; `ajet traces` writes them",
    "task_reader.feedback_tracing.filters": (
        "`task_reader.tracing` has other filters: only, agents, models, longest; identical requests always count "
        "separately"
    ),
    "task_reader.feedback_tracing.alien_llm_model": "ajet asks no model about traces",
    "task_reader.feedback_tracing.alien_llm_response_length": "ajet asks no model about traces",
    "task_judge.rubrics_auto_grader.sampling_mode": _ALL_EXAMPLES,
    "task_judge.rubrics_auto_grader.num_reference_samples": _ALL_EXAMPLES,
    "task_judge.rubrics_auto_grader.aggregation_mode": "ajet keeps the rubrics that agree with the labels",
    "trainer_common.save_trajectory_as_json_file": _RECORDED,
    "trainer_common.val_print_to_markdown_file_path": _RECORDED,
    "trainer_common.train_print_to_markdown_file_path": _RECORDED,
    "trainer_common.val_max_num_task_clip_method": "every validation runs all validation tasks",
    "trainer_common.optim.optimizer_impl": "it is torch's",
    "trainer_common.optim.zero_indexed_step": "the first step is 1",
    "lora.load_format": "engines get their weights from the trainer",
    "lora.layered_summon": "engines get their weights from the trainer",
    "debug.debug_vllm_port": _IN_PROCESS,
    "debug.debug_vllm_seed": "`ajet.seed` seeds the engine",
    "debug.debug_tensor_parallel_size": _IN_PROCESS,
    "enable_experimental_interchange_server": _NO_SWITCH,
    "enable_interchange_server": _NO_SWITCH,
    "interchange_server": _NO_SWITCH,
    "enable_swarm_mode": _SERVED,
    "swarm_mode_sample_collection_method": _SERVED,
    "swarm_mode_sample_collection_max_cached_episodes": _SERVED,
    "task_runner": "rollout.isolation decides how workflows run",
    "execute_test": _OTHERS_TESTS,
    "execute_testing_lambda": _OTHERS_TESTS,
}
"""Keys below `ajet`. A section's name includes all its keys."""


class FixedKey(NamedTuple):
    """A key of older YAMLs that ajet accepts at a single value, which describes what ajet always does."""

    value: Any
    refusal: str
    """The sentence for any other value."""


_ADAMW = "ajet's only optimizer is AdamW."
_WARM_UP = "ajet counts the warm-up in steps: set ajet.trainer_common.optim.lr_warmup_steps."
FIXED: Mapping[str, FixedKey] = {
    "trainer_common.val_only": FixedKey(
        False, "A training run always trains; to run tasks without training, use --backbone debug."
    ),
    "trainer_common.val_max_num_task_each_validation": FixedKey(
        None, "Every validation runs all validation tasks: set a smaller validation split of the reader."
    ),
    "trainer_common.ppo_epochs": FixedKey(
        1,
        "ajet trains on a batch once; ajet.trainer_common.mini_batch_num sets the number of optimizer steps per batch.",
    ),
    "trainer_common.loss_extra_scale_ratio": FixedKey(
        1.0, "ajet does not scale the loss: scale ajet.trainer_common.optim.lr instead."
    ),
    "trainer_common.optim.optimizer": FixedKey("AdamW", _ADAMW),
    "trainer_common.optim.total_training_steps": FixedKey(
        -1, "A schedule ends with the run: set ajet.trainer_common.total_training_steps."
    ),
    "trainer_common.optim.lr_warmup_steps_ratio": FixedKey(0.0, _WARM_UP),
    "trainer_common.optim.num_cycles": FixedKey(0.5, "ajet's cosine schedule falls once, over half a cycle."),
}

MOVED: Mapping[str, str] = {
    "rollout.agentscope_workflow": "rollout.user_workflow",
    "rollout.agentscope_learn_protocol": "rollout.user_workflow",
    "rollout.agentscope_disable_toolcalls": "rollout.force_disable_toolcalls",
    "task_reader.dataset_file": "task_reader.jsonl_dataset_file",
    "task_reader.feedback_tracing.base_url": "task_reader.tracing.sources",
    "task_judge.rubrics_auto_grader.dataset_file": "task_judge.rubrics_auto_grader.jsonl_dataset_file",
    "task_judge.rubrics_auto_grader.generate_number": "task_judge.rubrics_auto_grader.query_specific_generate_number",
    "trainer_common.lora.lora_rank": "trainer_common.lora.rank",
    "trainer_common.lora.lora_alpha": "trainer_common.lora.alpha",
    "lora.lora_rank": "trainer_common.lora.rank",
    "lora.lora_alpha": "trainer_common.lora.alpha",
    "lora.target_modules": "trainer_common.lora.target_modules",
    "lora.rank": "trainer_common.lora.rank",
    "lora.alpha": "trainer_common.lora.alpha",
    "lora.adapters": "trainer_common.lora.adapters",
    "trainer_common.lora.adapters.*.lora_rank": "trainer_common.lora.adapters.*.rank",
    "trainer_common.lora.adapters.*.lora_alpha": "trainer_common.lora.adapters.*.alpha",
    "trainer_common.optim.lr_scheduler_type": "trainer_common.optim.lr_schedule",
}
"""Below `ajet`: another name, and ours. A section's name includes all its keys; `*` is any name."""


OLDER_READERS: Mapping[Any, str] = {"dataset_file": "jsonl_dataset_file"}
"""Another name of a reader, for keys with a reader's name as value."""


def expand_moves(tree: Any) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (old path, new path) of each renamed key, with a `*` replaced by each name that `tree` has there.

    The caller may change `tree` meanwhile.

    Args:
        tree: The YAML's keys below `ajet`.
    """
    for old_key, new_key in MOVED.items():
        section_key, star, _ = old_key.partition(".*.")
        node = tree
        for part in section_key.split(".") if star else ():
            node = node.get(part) if isinstance(node, dict) else None
        for name in (list(node) if isinstance(node, dict) else ()) if star else ("",):
            old_path, new_path = (text.replace("*", str(name)).split(".") for text in (old_key, new_key))
            yield old_path, new_path


def map_moved_key(path: Sequence[Any]) -> tuple[Any, ...]:
    """Return the path of a key below `ajet` under its present name. A key that was not renamed is unchanged."""
    for length in range(len(path), 0, -1):
        if (new_key := MOVED.get(".".join(map(str, path[:length])))) is not None:
            return map_moved_key((*new_key.split("."), *path[length:]))
        wildcard_path = (*path[: length - 2], "*", *path[length - 1 : length])
        if length > 2 and (new_key := MOVED.get(".".join(map(str, wildcard_path)))) is not None:
            return (*path[: length - 1], new_key.rpartition(".")[2], *path[length:])
    return tuple(path)


def find_changed_keys(tree: Any) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Yield (path below `ajet`, value, sentence) of each key that has another value than the only one ajet accepts."""
    for name, fixed in FIXED.items():
        path, value = tuple(name.split(".")), tree
        for part in path:
            value = value.get(part, fixed.value) if isinstance(value, dict) else fixed.value
        if value != fixed.value:
            yield path, value, fixed.refusal


def explain_accepted_key(path: Sequence[Any]) -> str | None:
    """Return why a key of older YAMLs below `ajet` has no effect, or None if it is no such key."""
    names = [str(part) for part in path]
    if ".".join(names) in FIXED:
        return "ajet always behaves as with this value"
    return next(
        (ACCEPTED[name] for length in range(1, len(names) + 1) if (name := ".".join(names[:length])) in ACCEPTED), None
    )


def remove_accepted(tree: Any) -> Any:
    """Return a copy of the tree below `ajet` without the keys of older YAMLs that have no effect."""
    remaining = _remove_accepted_below(tree, ())
    for section, name in (
        (remaining, "lora"),
        (remaining.get("task_reader") if isinstance(remaining, dict) else None, _TRACING),
    ):
        if isinstance(section, dict) and section.get(name) == {}:
            del section[name]  # a section that has keys of these tables only
    return remaining


def _remove_accepted_below(node: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of the node at `path` without the keys of older YAMLs that have no effect."""
    if not isinstance(node, dict):
        return node
    return {
        name: _remove_accepted_below(value, (*path, name))
        for name, value in node.items()
        if (dotted := ".".join(map(str, (*path, name)))) not in ACCEPTED and dotted not in FIXED
    }
