"""verl's defaults that ajet replaces: the table is that of the installed verl, and a YAML's open keys are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.config.keys import list_counterparts
from ajet_verl.config.defaults import describe_replaced_defaults, list_replaced_defaults
from ajet_verl.config.layer import compose_sections, compose_verls_defaults, find_config_folder, find_extra
from ajet_verl.config.precedence import select_value
from ajet_verl.descriptor import VERL
from ajet_verl.verls import DEFAULTS, LIKE
from tests.support.verl_fixtures import experiment, without_verl

NAMES_AND_PLACES = {
    *("actor_rollout_ref.model.path", "actor_rollout_ref.rollout.agent.agent_loop_config_path"),
    *("trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir", "trainer.logger"),
    *("data.shuffle", "actor_rollout_ref.actor.loss_scale_factor", "actor_rollout_ref.rollout.name"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    "actor_rollout_ref.actor.optim.override_optimizer_config.eps",
}
"""Other values without another meaning, or named elsewhere on the page."""


@without_verl
def test_the_table_is_that_of_the_installed_verl() -> None:
    folder = find_config_folder(find_extra("auto"))
    assert folder is not None
    verls, known = compose_verls_defaults(folder, False), compose_sections(experiment())[0]
    for key, default in DEFAULTS.items():
        assert select_value(verls, key) == default != select_value(known, key), key
    filled = [".".join(map(str, path)) for path in list_counterparts(VERL.filled)]
    other = {key for key in (*filled, *LIKE) if select_value(verls, key) != select_value(known, key)}
    other = {key for key in other if ".ajet_" not in key and not key.endswith("seed")}
    other = {key for key in other if not key.startswith("actor_rollout_ref.ref.")}
    assert other - NAMES_AND_PLACES <= {*DEFAULTS}, "a default differs and the table does not say so"


def test_keys_that_are_set_on_either_side_are_left_out() -> None:
    roots = {"actor_rollout_ref": {"actor": {"loss_agg_mode": "token-mean"}}, "verl": {"data": {"train_batch_size": 8}}}
    found = {each.key for each in list_replaced_defaults(experiment({"rollout.temperature": 0.9}, **roots))}
    assert "actor_rollout_ref.actor.clip_ratio_c" in found
    assert not {"actor_rollout_ref.actor.loss_agg_mode", "data.train_batch_size"} & found
    assert "actor_rollout_ref.rollout.temperature" not in found
    one = list_replaced_defaults(experiment({"trainer_common.max_staleness": 2}))
    assert "trainer.v1.sampler.max_off_policy_threshold" not in {each.key for each in one}
    assert describe_replaced_defaults(experiment()) == "", "nobody wrote keys of verl's"


@pytest.mark.slow
def test_validate_names_the_open_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("async def agent(task, tuner): ...\n")
    (tmp_path / "m.yaml").write_text(
        "ajet: {backbone: verl, model: {path: embedded:tiny-tools}, rollout: {user_workflow: a.py->agent, "
        "max_model_len: 1024}, data: {max_prompt_length: 256}, task_reader: {type: random_dummy}}\n"
        "algorithm: {adv_estimator: grpo}\nactor_rollout_ref: {actor: {use_kl_loss: false}}\n"
    )
    with pytest.raises(SystemExit) as ended:
        launcher.main(["config", "validate", "--conf", "m.yaml"])
    assert ended.value.code == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    line = lines["actor_rollout_ref.actor.loss_agg_mode"]
    assert "seq-mean-token-mean" in line and "verl: token-mean" in line
    assert "actor_rollout_ref.actor.use_kl_loss" not in lines and "algorithm.adv_estimator" not in lines
