"""Keys of older YAMLs for which ours needs no switch: a name, and why.

Invariant: such a key may stand in a YAML or an override with any value; no code can read it (it is taken out before the
schema sees the tree), and whoever sets it is told the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NO_SWITCH = "every client library reaches the gateway without it"
_IN_PROCESS = "the debug backbone's engine runs inside this process"
_OTHERS_TESTS = "it is a switch of another system's own tests"

ACCEPTED: Mapping[str, str] = {
    "rollout.mode": "requests are always asynchronous",
    "rollout.step_skip_action": "failed episodes are counted and left out, whole steps are not skipped",
    "context_tracker.timeline_merging_policy.timeline_compare_level": "calls are joined where their ids agree; that a "
    "client's text is what was sampled is settled before, when a request comes in",
    "context_tracker.fix_retokenization_drift": "replies are kept as the exact ids that were sampled, so none drifts",
    "trainer_common.save_trajectory_as_json_file": "every episode is kept in the run directory's `episodes/`",
    "debug.debug_vllm_port": _IN_PROCESS,
    "debug.debug_vllm_seed": "`ajet.seed` seeds the engine",
    "debug.debug_tensor_parallel_size": _IN_PROCESS,
    "enable_experimental_interchange_server": _NO_SWITCH,
    "interchange_server": _NO_SWITCH,
    "task_runner": "rollout.isolation decides how workflows run",
    "execute_test": _OTHERS_TESTS,
    "execute_testing_lambda": _OTHERS_TESTS,
}
"""Below `ajet`. One that names a section stands for all that is in it."""


def accepted(path: Sequence[Any]) -> str | None:
    """Why the key at `path` below `ajet` has no effect; None for one that is not of this table."""
    names = [str(part) for part in path]
    return next((ACCEPTED[name] for n in range(1, len(names) + 1) if (name := ".".join(names[:n])) in ACCEPTED), None)


def without_accepted(tree: Any) -> Any:
    """A copy of what stands below `ajet` in which none of them is left."""
    return _without(tree, ())


def _without(node: Any, path: tuple[Any, ...]) -> Any:
    if not isinstance(node, dict):
        return node
    return {
        name: _without(value, (*path, name))
        for name, value in node.items()
        if ".".join(map(str, (*path, name))) not in ACCEPTED
    }
