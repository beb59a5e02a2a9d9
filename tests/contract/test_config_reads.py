"""Every key says what it does where: held against what real runs of each backbone read.

A key that is read where its declaration says that it has no effect, and one that is declared to have an effect and that
the run does not read, fail by name. The lists of exceptions say why; one that is none any more fails, too.
"""

from __future__ import annotations

import pytest

from ajet.backbone.verl.config import verl_config
from ajet.config import Experiment
from ajet.config.idle import idle_reason
from ajet.config.schema.task_reader import READERS
from tests.config_reads import KEYS, LAYER, Reads, recorded_reads
from tests.config_runs import launched, loaded, on_verl, served
from tests.verl_fixtures import experiment as on_gpus
from tests.verl_fixtures import without_verl

pytestmark = pytest.mark.slow

HELD_OUT = {"task_reader.jsonl_dataset_file.validation.file_path": "the reader takes both files' names"}
SIZES = [key for key in KEYS if key.startswith("trainer_common.megatron.")]
OUTLOOK = (
    "data.train_batch_size", "rollout.max_env_worker", "trainer_common.algorithm.adv_estimator",
    "trainer_common.algorithm.norm_adv_by_std", "trainer_common.algorithm.equal_rewards", "trainer_common.lora.rank",
    "trainer_common.mini_batch_num", "trainer_common.micro_batch_tokens", "trainer_common.gradient_checkpointing",
    "trainer_common.use_kl_loss", "trainer_common.total_training_steps", "trainer_common.max_checkpoints_to_keep",
    "trainer_common.keep_best",
)  # fmt: skip
"""What debug's last lines estimate a training by."""
IN_VAIN: dict[str, dict[str, str]] = {
    "debug": {
        **HELD_OUT,
        "trainer_common.resume": "a debug run has a folder of its own",
        "trainer_common.log_freq": "no tracker is told of a debug run",
        **dict.fromkeys(OUTLOOK, "read for what debug says of a training"),
    },
    "local": {},
    "serve": HELD_OUT,
    "verl": {
        "rollout.engine": "an endpoint is refused; which of the others it is makes no difference",
        **dict.fromkeys(SIZES, "with another strategy a size above 1 is refused"),
    },
}
"""Read there, and without effect nevertheless."""
LABEL = {"project_name": "a label: the record holds it"}
UNUSUAL = {
    "rollout.agent_madness_reward": "read where a check finds abnormal output",
    "context_tracker.log_tool_format_error_detail": "read where a tool call has the wrong form",
}
UNREAD: dict[str, dict[str, str]] = {
    "debug": {**LABEL, **UNUSUAL},
    "local": UNUSUAL,
    "serve": {
        **UNUSUAL,
        "rollout.min_group": "read where a group's deadline has passed",
        "rollout.policy_failure_reward": "read where an episode failed",
        "trainer_common.mode": "anything but sync is refused",
    },
    "verl": {**UNUSUAL, "rollout.enable_oversample": "anything but false is refused"},
}
"""With an effect there, on a condition that the run does not meet."""


def differences(where: str, experiment: Experiment, reads: Reads) -> list[str]:
    """Between what is declared and what was read."""
    config, found = experiment.ajet, []
    in_vain, unread = {**IN_VAIN[where]}, {**UNREAD[where]}
    for key, notes in KEYS.items():
        reason = idle_reason(notes, config, experiment.backbone, serving=where == "serve")
        if key in reads and reason is not None and in_vain.pop(key, None) is None:
            found.append(f"{key}: declared idle ({reason.why}), and read by {', '.join(sorted(reads[key]))}")
        if key not in reads and reason is None and unread.pop(key, None) is None:
            found.append(f"{key}: declared to have an effect, and read by nothing")
    return found + [f"{key}: no exception any more" for key in (*in_vain, *unread)]


def test_debug(tmp_path):
    with recorded_reads() as reads:
        experiment = launched(tmp_path, "debug")
    assert differences("debug", experiment, reads) == []


def test_local(tmp_path):
    with recorded_reads() as reads:
        experiment = launched(tmp_path, "local", "rollout.enable_oversample=true")
    assert differences("local", experiment, reads) == []


def test_serve(tmp_path, monkeypatch):
    with recorded_reads() as reads:
        experiment = served(tmp_path, monkeypatch)
    assert differences("serve", experiment, reads) == []


@without_verl
def test_verl(tmp_path, monkeypatch):
    with recorded_reads() as reads:
        experiment = on_verl(tmp_path, monkeypatch)
    assert differences("verl", experiment, reads) == []


@without_verl
def test_megatron_is_split_as_its_section_says():
    with recorded_reads() as reads:
        verl_config(on_gpus({"trainer_common.strategy": "megatron"}))
    assert {*SIZES} <= {key for key, readers in reads.items() if LAYER in readers}


@pytest.mark.parametrize("kind", ["jsonl_dataset_file", "huggingface_dat_repo", "random_dummy", "reasoning_gym"])
def test_a_reader_reads_its_own_section(tmp_path, kind):
    from ajet.task_reader import open_reader

    with recorded_reads() as reads:
        open_reader(loaded(tmp_path, "local", f"task_reader.type={kind}"))
    sections = [key for key in reads if key.startswith("task_reader.") and key.split(".")[1] in READERS]
    assert sorted(sections) == sorted(key for key in KEYS if key.startswith(f"task_reader.{kind}."))


def test_what_is_read_is_recorded_and_what_all_keys_go_through_is_not(tmp_path):
    with recorded_reads() as reads:
        experiment = loaded(tmp_path, "local")
        experiment.resolved_yaml(), experiment.training_relevant(), experiment.idle(), experiment.config.to_dict()
        assert reads.keys() == {"backbone", "base_dir", "experiment_dir", "experiment_name"}
        assert experiment.config.ajet.rollout.top_k == experiment.ajet.rollout.val_kwargs.top_k == -1
        assert experiment.served().ajet.validation_repeats == 1
    new = reads.keys() - {"backbone", "base_dir", "experiment_dir", "experiment_name"}
    assert new == {
        "rollout.top_k", "rollout.val_kwargs.top_k", "rollout.val_kwargs.do_sample", "rollout.val_kwargs.num_repeat",
        "trainer_common.val_pass_n", "trainer_common.algorithm.is_cap",
    }  # fmt: skip
