"""Every key says what it does where: held against what real runs of each backbone read.

A key that is read where its declaration says that it has no effect, and one that is declared to have an effect and that
the run does not read, fail by name. The lists of exceptions say why; one that is none any more fails, too.
"""

from __future__ import annotations

import pytest

from ajet.config import Experiment
from ajet.config.idle import find_idle_reason
from ajet.config.plugins import find_parts
from ajet.record import EpisodeFiles
from ajet_verl.config import compose_verl_config
from tests.support.ajet_process import metric_rows
from tests.support.config_reads import KEYS, LAYER, Reads, recorded_reads
from tests.support.config_runs import launched, loaded, on_verl, scorers_recorded, served
from tests.support.verl_fixtures import experiment as on_gpus
from tests.support.verl_fixtures import without_verl

pytestmark = pytest.mark.slow

HELD_OUT = {"task_reader.jsonl_dataset_file.validation.file_path": "the reader takes both files' names"}
SIZES = [key for key in KEYS if key.startswith("trainer_common.megatron.")]
OUTLOOK = (
    "data.train_batch_size", "rollout.max_env_worker", "trainer_common.algorithm.adv_estimator",
    "trainer_common.algorithm.norm_adv_by_std", "trainer_common.algorithm.equal_rewards",
    "trainer_common.algorithm.process_weight", "trainer_common.algorithm.policy_loss",
    "trainer_common.algorithm.overlong.length", "trainer_common.algorithm.importance_weight_cap_ratio",
    "trainer_common.algorithm.strict_in_bound", "trainer_common.algorithm.out_of_date_decay",
    "trainer_common.algorithm.old_policy", "trainer_common.lora.rank", "trainer_common.lora.adapters",
    "trainer_common.mini_batch_num", "trainer_common.micro_batch_tokens", "trainer_common.gradient_checkpointing",
    "trainer_common.use_kl_loss", "trainer_common.total_training_steps", "trainer_common.max_checkpoints_to_keep",
    "trainer_common.keep_best", "trainer_common.mode",
)  # fmt: skip
"""What debug's last lines estimate a training by."""
HANDED_ON = ("tau_positive", "tau_negative", "step_discount", "reward_weights")
IN_VAIN: dict[str, dict[str, str]] = {
    "debug": {
        **HELD_OUT,
        "trainer_common.algorithm.preset": "laid under a YAML whatever the backbone",
        "trainer_common.resume": "a debug run has a folder of its own",
        "trainer_common.log_freq": "no tracker is told of a debug run",
        **dict.fromkeys(OUTLOOK, "read for what debug says of a training"),
    },
    "local": {},
    "serve": {"trainer_common.mode": "read for how many checkpoints lie there at once"},
    "verl": {
        "rollout.engine": "an endpoint is refused; which of the others it is makes no difference",
        **dict.fromkeys(SIZES, "with another strategy a size above 1 is refused"),
        **dict.fromkeys(
            [f"trainer_common.algorithm.{key}" for key in HANDED_ON],
            "handed on whatever verl is told to compute",
        ),
    },
}
"""Read there, and without effect nevertheless."""
LABEL = {"project_name": "a label: the record holds it"}
UNUSUAL = {
    "rollout.agent_madness_reward": "read where a check finds abnormal output",
    "context_tracker.log_tool_format_error_detail": "read where a tool call has the wrong form",
}
STORE = {"store.unreachable_timeout": "read where a run has a store (store/test_outage.py)"}
AGENT = {
    key: "read by the agent mcp_agent, or a class made of it (test_mcp_agent.py)"
    for key in KEYS if key.startswith(("environment.agent_config", "rollout.mcp_agent."))
}  # fmt: skip
"""Where a run has an agent of its own, it may read them."""
BY_STEP = {
    "trainer_common.algorithm.overlong.buffer": "read with overlong.length (test_algorithm_advantages.py)",
    "trainer_common.algorithm.overlong.penalty": "likewise",
}
BY_WEIGHTS = {"trainer_common.algorithm.is_floor": "read with is_cap and a mask (test_algorithm_policy_losses.py)"}
IN_SANDBOX = {key: "read where a workflow opens a sandbox" for key in KEYS if key.startswith("environment.sandbox_")}
BY_MODELS = {
    key: "read where models judge (test_model_judge.py)"
    for key in KEYS if key.startswith("task_judge.model_judge.") or key == "task_judge.judge_prompt_template"
}  # fmt: skip
UNREAD: dict[str, dict[str, str]] = {
    "debug": {**LABEL, **UNUSUAL, **BY_MODELS, **AGENT, **IN_SANDBOX},
    "local": {**UNUSUAL, **STORE, **BY_MODELS, **AGENT, **IN_SANDBOX, **BY_STEP, **BY_WEIGHTS},
    "serve": {
        **UNUSUAL,
        **STORE,
        **BY_STEP,
        **BY_MODELS,
        **AGENT,
        **IN_SANDBOX,
        "rollout.policy_failure_reward": "read where an episode failed",
    },
    "verl": {
        **UNUSUAL,
        **STORE,
        **BY_MODELS,
        **AGENT,
        **IN_SANDBOX,
        "rollout.enable_oversample": "anything but false is refused",
        "data.curriculum.prefer": "anything but null is refused",
    },
}
"""With an effect there, on a condition that the run does not meet."""


def differences(where: str, experiment: Experiment, reads: Reads) -> list[str]:
    """Between what is declared and what was read."""
    config, found = experiment.ajet, []
    in_vain, unread = {**IN_VAIN[where]}, {**UNREAD[where]}
    for key, notes in KEYS.items():
        reason = find_idle_reason(notes, config, experiment.backbone, serving=where == "serve")
        if key in reads and reason is not None and in_vain.pop(key, None) is None:
            found.append(f"{key}: declared idle ({reason.why}), and read by {', '.join(sorted(reads[key]))}")
        if key not in reads and reason is None and unread.pop(key, None) is None:
            found.append(f"{key}: declared to have an effect, and read by nothing")
    return found + [f"{key}: no exception any more" for key in (*in_vain, *unread)]


def test_debug(tmp_path):
    with recorded_reads() as reads:
        experiment = launched(tmp_path, "debug")
    assert differences("debug", experiment, reads) == []
    assert scorers_recorded(tmp_path)


def test_local(tmp_path):
    with recorded_reads() as reads:
        experiment = launched(tmp_path, "local", "rollout.enable_oversample=true")
    assert differences("local", experiment, reads) == []
    assert scorers_recorded(tmp_path)


def test_serve(tmp_path, monkeypatch):
    with recorded_reads() as reads:
        experiment = served(tmp_path, monkeypatch)
    assert differences("serve", experiment, reads) == []
    run = tmp_path / "runs" / "x"
    rows = [(row["step"], row["validation/episodes"]) for row in metric_rows(run) if "validation/episodes" in row]
    assert rows == [(0, 1), (1, 1)], "the server's own held-out task, one row a validation"
    asked = [each.task.main_query for each in EpisodeFiles(run / "episodes").read(1, "validation")]
    assert asked == ["What is 1 + 2?", "What is 2 + 2?"], "a client's is recorded with it"


@without_verl
def test_verl(tmp_path, monkeypatch):
    with recorded_reads() as reads:
        experiment = on_verl(tmp_path, monkeypatch)
    assert differences("verl", experiment, reads) == []
    assert scorers_recorded(tmp_path)


@without_verl
def test_megatron_is_split_as_its_section_says():
    with recorded_reads() as reads:
        compose_verl_config(on_gpus({"trainer_common.strategy": "megatron"}))
    assert {*SIZES} <= {key for key, readers in reads.items() if LAYER in readers}


@pytest.mark.parametrize(
    "kind",
    ["jsonl_dataset_file", "agentrl", "huggingface_dat_repo", "random_dummy", "reasoning_gym", "gaia", "hotpotqa"],
)
def test_a_reader_reads_its_own_section(tmp_path, kind):
    from ajet.task_reader import open_reader

    with recorded_reads() as reads:
        open_reader(loaded(tmp_path, "local", f"task_reader.type={kind}"))
    sections = [key for key in reads if key.startswith("task_reader.") and key.split(".")[1] in find_parts("reader")]
    assert sorted(sections) == sorted(key for key in KEYS if key.startswith(f"task_reader.{kind}."))


def test_what_is_read_is_recorded_and_what_all_keys_go_through_is_not(tmp_path):
    with recorded_reads() as reads:
        experiment = loaded(tmp_path, "local")
        (
            experiment.dump_resolved(),
            experiment.list_training_settings(),
            experiment.list_idle_keys(),
            experiment.config.to_dict(),
        )
        always = {"backbone", "base_dir", "experiment_dir", "experiment_name", "trainer_common.algorithm.preset"}
        assert reads.keys() == always
        assert experiment.config.ajet.rollout.top_k == experiment.ajet.rollout.val_kwargs.top_k == -1
        assert experiment.adapt_to_serve().ajet.validation_repeats == 1
    assert reads.keys() - always == {
        "rollout.top_k", "rollout.val_kwargs.top_k", "rollout.val_kwargs.do_sample", "rollout.val_kwargs.num_repeat",
        "trainer_common.val_pass_n", "trainer_common.algorithm.is_cap", "trainer_common.algorithm.old_policy",
    }  # fmt: skip
