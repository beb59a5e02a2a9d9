"""The pages for those who come from AgentJet, AgentRL and AWorld: what a row names is there, under that name.

A row's second cell is its verdict. Of each row the third cell is checked, and of a row that says `same` the first one,
too, where it is spelled as a flag or a class: keys are keys of the schema with such values, flags are flags of the
command, classes import, files lie in the repository.
"""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import ajet.client
from ajet.commands.job_arguments import KEYS as JOB
from ajet.config import load_experiment
from ajet.config.backbones import find_backbone
from ajet.config.idle import format_idle_keys
from ajet.config.keys import find_counterpart, list_dotted_keys
from ajet.config.schema.agentrl import HERE, NOT_HERE
from ajet.config.schema.base import walk_keys
from ajet.config.schema.extended import config_model
from ajet.schema.errors import ConfigError
from scripts.reference.pages import cli_md
from tests.commands.test_job_arguments import NEWEST
from tests.config.test_keys_agentjet import WHOLE
from tests.docs.snippets import ROOT

DOCS = ROOT / "docs"
PAGES = {"agentrl.md": 100, "agentjet.md": 30, "aworld.md": 15}
"""With how many names at least are checked of each: a page whose rows are read no more would pass all else."""
VERDICTS = {"same", "other", "better", "gone"}
REST = (DOCS / "reference" / "configuration.md").read_text().split("## Accepted for older YAMLs")[1]
OLDER = {f"{section}.{key}".strip(".") for section, key in re.findall(r"\| `ajet\.?([\w.]*)` \| `(\w+)`", REST)}
OLDER |= set(re.findall(r"\| `ajet\.([\w.]+)` \|", REST))
"""Keys that are understood, by another name or without an effect."""
KEYS = {*list_dotted_keys()}
TAKEN = {".".join(path): field.annotation for path, field, _ in walk_keys(config_model(shipped=True))}
CALLED = re.compile(r"(?P<command>ajet(?: [a-z]+)*)(?P<rest>(?: .*)?)")
DOTTED = re.compile(r"(?P<key>[a-z_]+(?:\.[a-z_]+)+)(?:: (?P<value>.+))?")
CLASS = re.compile(r"(?:ajet|train)(?:\.\w+)+")
IMPORT = re.compile(r"from (?P<module>[\w.]+) import (?P<name>\w+)")
CLIENT = re.compile(r"(?P<kind>Client|Episode)\.(?P<name>\w+)")
FILE = re.compile(r"[\w./]+/[\w.]+\.(?:md|yml|yaml|sh|py)")
PLACES = re.compile(r"path$|user_workflow|alien_llm_model|params\.|jsonl_dataset_file")


def rows(page: str) -> list[tuple[str, str, str]]:
    """(there, verdict, here) of each row that has a verdict."""
    cells = [re.split(r"(?<!\\) \| ", line.strip()[2:-2]) for line in (DOCS / page).read_text().splitlines()]
    return [(each[0], each[1], each[2]) for each in cells if len(each) == 3 and each[1] in VERDICTS]


def commands() -> dict[str, str]:
    """A command's name to its section of the command line's page."""
    parts = re.split(r"^## `([^`]+)`\n", cli_md(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def is_there(name: str, known: dict[str, str]) -> bool | None:
    """Whether what is named exists; None for words that name nothing of the kind."""
    if name.startswith("--"):
        return all(f"`{flag}" in known["ajet"] for flag in re.findall(r"--[a-z-]+", name))
    if found := CALLED.fullmatch(name):
        words = found["command"]
        while words not in known and " " in words:
            words = words.rpartition(" ")[0]
        if words == "ajet" and found["command"] != "ajet":
            return found["command"] == "ajet train" and "--from-store" in known["ajet"] + known.get("ajet train", "")
        return words in known and all(f"`{flag}" in known[words] for flag in re.findall(r"--[a-z-]+", name))
    if found := IMPORT.fullmatch(name):
        return defines(found["module"], found["name"])
    if CLASS.fullmatch(name) and not name.startswith("ajet.services"):
        module, _, attribute = name.rpartition(".")
        return defines(module, attribute)
    if found := CLIENT.fullmatch(name):
        return hasattr(getattr(ajet.client, found["kind"]), found["name"])
    if FILE.fullmatch(name):
        return (ROOT / name).exists()
    if name.startswith(("actor_rollout_ref", "launcher_record/")):
        return None
    if found := DOTTED.fullmatch(name):
        return found["key"].removeprefix("ajet.") in KEYS | OLDER
    return name in KEYS or None


def defines(module: str, name: str) -> bool:
    """Whether a module has a name, told from its source: importing what AWorld needs takes five seconds."""
    if module == "ajet" and name in ajet.__all__:  # names that plug-ins bring are in no source of it
        return True
    below = Path(*module.split("."))
    for path in (ROOT / below.with_suffix(".py"), ROOT / below / "__init__.py"):
        if path.exists():
            text = path.read_text()
            named = {getattr(node, "name", "") for node in ast.walk(ast.parse(text))}
            return name in named or re.search(rf"[\"']{name}[\"']|^{name}\b.*=", text, re.M) is not None
    return find_spec(module) is not None and name == "*"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_row_names_is_there(page):
    known, checked, wrong = commands(), 0, []
    for there, verdict, here in rows(page):
        assert here.strip(), there
        for name in re.findall(r"`([^`]+)`", here):
            found = is_there(name, known)
            checked += found is not None
            if found is False:
                wrong.append(f"{there}: {name}")
        for name in re.findall(r"`([^`]+)`", there) if verdict == "same" else ():
            if CLASS.fullmatch(name) or (page == "agentjet.md" and name.startswith("--")):
                checked += 1
                if not is_there(name, known) and not understood(name):
                    wrong.append(f"{there}: {name}")
    assert not wrong
    assert checked >= PAGES[page], checked


def understood(flag: str) -> bool:
    """A companion of a run, or a flag that is answered with a sentence."""
    from ajet.cli.launcher import FLAG_ALIASES, UNNEEDED_FLAGS

    return flag.startswith("--with-") or flag in FLAG_ALIASES or flag in UNNEEDED_FLAGS


def test_values_that_the_pages_give_to_keys_are_taken(tmp_path):
    """All of them, laid over a YAML one by one."""
    (tmp_path / "x.yaml").write_text("ajet: {model: {path: 'embedded:tiny-tools'}}\n")
    tried = 0
    for page in PAGES:
        for _, _, here in rows(page):
            for name in re.findall(r"`([^`]+)`", here):
                found = DOTTED.fullmatch(name)
                if found and found["value"] and found["key"].removeprefix("ajet.") in TAKEN:
                    given = f"{found['key'].removeprefix('ajet.')}={found['value']}"
                    if not re.search(r"[A-Z]|->", found["value"]):  # words in capitals stand for a person's own
                        load_experiment(tmp_path / "x.yaml", overrides=[given], backbone="debug")
                        tried += 1
    assert tried >= 15, tried


def test_each_flag_of_agentrls_page_and_scripts_has_a_row():
    """Those of its `src/configs.py` at 36c699e5, and of its two training scripts."""
    said = " ".join(there for there, _, _ in rows("agentrl.md"))
    lacking = [flag for flag in AGENTRL.split() if not re.search(rf"--{flag}\b", said)]
    assert not lacking


def test_each_flag_of_agentrl_is_answered_with_the_keys_of_its_row():
    """By the command and for a key of that name: `HERE` and `NOT_HERE`."""
    assert sorted([*HERE, *NOT_HERE]) == sorted({*AGENTRL.split()})
    told: dict[str, str] = {}
    for there, verdict, here in rows("agentrl.md"):
        for flag in re.findall(r"--([a-z_0-9]+)", there):
            assert (flag in NOT_HERE) <= (verdict == "gone"), flag
            told[flag] = f"{told.get(flag, '')} {here}"
    for flag, answer in HERE.items():
        keys = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", answer))
        assert keys <= KEYS and [key for key in keys if f"`{key}" not in told[flag]] == [], flag


def test_the_defaults_that_differ_from_agentjets_are_all_there():
    """Those of its YAML that are no place of a person's own; "none" is null here, and the run's own folder, too."""
    said = dict(re.findall(r"^\| `([\w.]+)` \| .+ \| (.+) \|$", ours_of_defaults(), re.M))
    default = {".".join(path): field.default for path, field, _ in walk_keys(config_model(shipped=True))}
    theirs = {key: value for key, value in pairs(yaml.safe_load(WHOLE)["ajet"]) if key in default}
    apart = {key for key, value in theirs.items() if value != default[key] and not PLACES.search(key)}
    assert apart - {"trainer_common.optim.lr_warmup_steps"} <= said.keys()  # -1 and 0 are none
    for key, value in said.items():
        if default[key] is None:
            assert re.match("none|the run's own folder", value), key
        else:
            given = default[key] if isinstance(default[key], list) else [default[key]]
            words = [str(each).lower() if isinstance(each, bool) else str(each) for each in given]
            assert all(word in value.replace("`", "") for word in words), (key, value)
        assert key not in theirs or theirs[key] != default[key], key


def ours_of_defaults() -> str:
    return (DOCS / "agentjet.md").read_text().split("### Defaults that differ")[1].split("\n## ")[0]


def test_each_key_of_agentjets_defaults_is_ours_or_has_a_row():
    keys = list(leaves(yaml.safe_load(WHOLE)["ajet"]))
    ours = [key for key in keys if key in KEYS or any(key == each or key.startswith(f"{each}.") for each in OLDER)]
    assert ours == keys and len(keys) > 120


def test_each_flag_of_agentjets_launcher_has_a_row():
    """Those of its `ajet/launcher.py` at 0052b4c5."""
    said = " ".join(there for there, _, _ in rows("agentjet.md"))
    assert [flag for flag in AGENTJET.split() if not re.search(rf"--{flag}(?![\w-])", said)] == []


def named_in_rows(page: str) -> set[str]:
    """The words within backticks of all first cells: `a.b(c=…)` names a.b(c=…), a.b, a, b and c."""
    marked = [name for there, _, _ in rows(page) for name in re.findall(r"`([^`]+)`", there)]
    return {*marked, *(word for name in marked for form in (r"[\w.]*\w", r"\w+") for word in re.findall(form, name))}


def test_each_override_of_aworlds_run_sh_has_a_row_with_the_key_that_verl_gets_it_from():
    """Those of its page on training; ours has the same script."""
    script = (ROOT / "train/examples/train_gaia_with_aworld_verl/run.sh").read_text()
    said, layers = rows("aworld.md"), find_backbone("verl").filled
    for override in OVERRIDES.replace("AR.", "actor_rollout_ref.").split():
        (here,) = [here for there, _, here in said if f"`{override}`" in there]
        assert f" {override}=" in script or f" reward.{override}=" in script, override
        near = find_counterpart(tuple(override.split(".")), layers)
        assert near is None or f"`{near.key.removeprefix('ajet.')}" in here, (override, near)


@pytest.mark.slow
def test_each_override_of_aworlds_run_sh_is_answered_with_a_key_of_its_row(tmp_path):
    """Where one is given to a launch that does not read it; at `data.train_batch_size` and two more it is ours."""
    (tmp_path / "x.yaml").write_text("ajet: {model: {path: 'embedded:tiny-tools'}}\n")
    answered = 0
    for override in OVERRIDES.replace("AR.", "actor_rollout_ref.").split():
        (here,) = [here for there, _, here in rows("aworld.md") if f"`{override}`" in there]
        ours = [key for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)", here) if key in KEYS]
        if override in KEYS or not ours:
            continue
        try:
            experiment = load_experiment(tmp_path / "x.yaml", overrides=[f"{override}=7"], backbone="local")
            said = format_idle_keys(experiment.list_idle_keys(), "here")
        except ConfigError as error:
            said = error.do
        assert any(f"`ajet.{key}" in said or f" {key}" in said for key in ours), (override, said)
        answered += 1
    assert answered > 35


def test_each_name_of_aworlds_pages_has_a_row():
    """Variables of its `run.sh`, and names of its pages on training and on the trainer, that are not a local variable
    of a function that they print."""
    script = (ROOT / "train/examples/train_gaia_with_aworld_verl/run.sh").read_text()
    lacking = [name for name in VARIABLES.split() if name not in named_in_rows("aworld.md")]
    assert not lacking and [name for name in VARIABLES.split() if f"{name}=" not in script] == []
    assert {name for name in AWORLD.split() if name not in named_in_rows("aworld.md")} == set()


@pytest.mark.parametrize("page", PAGES)
def test_each_class_of_the_pages_that_people_bring_has_a_row(page):
    assert {name for name in CLASSES[page].split() if name not in named_in_rows(page)} == set()


def test_each_argument_of_agentjets_job_has_a_row_with_its_key():
    for name in [*NEWEST.split(), "n_gpu_for_infer"]:
        found = [(verdict, here) for there, verdict, here in rows("agentjet.md") if f"`{name}`" in there]
        if JOB.get(name) in KEYS:
            assert [verdict for verdict, here in found if f"`{JOB[name]}`" in here] == ["same"], name
        else:
            assert [verdict for verdict, _ in found] == ["gone" if name in JOB else "same"], name


def test_each_name_of_agentjets_swarm_client_has_a_row():
    """Those that its `swarm_client.py` and its tutorials call, and the fields of its throttle policy."""
    assert {name for name in SWARM.split() if name not in named_in_rows("agentjet.md")} == set()


def pairs(tree, prefix=""):
    for name, value in tree.items():
        yield from pairs(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]


def leaves(tree, prefix=""):
    for name, value in tree.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]


AGENTJET = """
backbone swarm-server conf exp-dir debug db bp breakpoint with-ray with-ray-cluster with-appworld with-deepfinance
with-webshop with-bfcl with-logview with-crafters skip-check-avail-gpu kill autokill prefix swarm-overwatch
"""
SWARM = """
SwarmClient SwarmThrottlePolicy OpenaiBaseUrlAndApiKey begin_episode end_episode abort_episode can_continue_episode
discard_episode_timeout episode_type throttle_policy ratio expected_batch_size expected_num_repeat current_task_id
episode_uuid openai_base_url openai_api_key workflow_output sync_train_config start_engine stop_engine
auto_sync_train_config_and_start_engine async_and_start_multi_engine get_engine_status get_episode_buffer
get_rollout_stat print_rollout_stat run_episodes_until_all_complete auto_train_with_dataset
rollout_until_finish_enough_episodes rollout_until_finish_enough_tasks rollout_until_finish_enough_non_dummy_tasks
"""
CLASSES = {
    "agentjet.md": """
Workflow WorkflowTask WorkflowOutput Task ModelTuner AjetTuner AgentJetJob BaseJudge EnvServiceJudge MathAnswerAsJudge
ReActAgent DashScopeChatFormatter InMemoryMemory Toolkit Msg RobustDashScopeChatModel RouterTaskReader
AjetTaskReader register_model get_model agentscope_execute
""",
    "agentrl.md": "AsyncSampler MCPSampler MCPScorerFactory Task Record DispatchedSamplingTask DBRecordData",
    "aworld.md": """
Agent AgentConfig Swarm AworldAgentLoop GaiaAgentLoop CustomAgentLoop AgentTrainer TrainerProcessor CustomTrainer
MyFrameworkTrainer
""",
}
"""Those of the tutorial, the README and the pages on training; a class of the reader's own by what it is one of."""
AWORLD = """
build_agents get_llm_server_address get_llm_server_model_name get_agent_tool_env_and_servers llm_base_url
llm_model_name llm_api_key mcp_config mcp_servers timeout sse_read_timeout client_session_timeout_seconds
MCP_SERVER_URL MCP_SERVER_TOKEN name _target_ run.sh agent.yaml custom_agent_loop.py create_dataset.py
normalize_number_str split_string normalize_str question_scorer gaia_reward_func agent train_dataset test_dataset
reward_func config train_engine_name run_path register_processor unregister_processor TRAIN_PROCESSOR train
check_agent check_dataset check_reward check_config mark_initialized
"""
VARIABLES = """
agent_loop_config_path reward_fn_name reward_fn_file_path GPUS_PER_NODE NNODES RAY_NUM_NODES HDFS_ROOT DATA_ROOT
model_path train_files test_files path_to_train dummy_tool_config_path project_name experiment_name default_local_dir
adv_estimator use_kl_in_reward kl_coef use_kl_loss kl_loss_coef clip_ratio_low clip_ratio_high max_turns
max_prompt_length max_response_length actor_lr train_batch_size ppo_mini_batch_size n_resp_per_prompt
n_resp_per_prompt_val RAY_LOGGING_LEVEL HYDRA_FULL_ERROR NCCL_IBEXT_DISABLE NCCL_NVLS_ENABLE NCCL_IB_HCA
UCX_NET_DEVICES VLLM_USE_V1 VLLM_ATTENTION_BACKEND infer_tp train_sp offload actor_max_token_len_per_gpu
log_prob_max_token_len_per_gpu
"""
OVERRIDES = """
algorithm.adv_estimator algorithm.use_kl_in_reward algorithm.kl_ctrl.kl_coef data.train_files data.val_files
data.return_raw_chat data.train_batch_size data.max_prompt_length data.max_response_length
data.filter_overlong_prompts data.truncation AR.model.path AR.model.use_remove_padding
AR.model.enable_gradient_checkpointing AR.actor.use_kl_loss AR.actor.kl_loss_coef AR.actor.clip_ratio_low
AR.actor.clip_ratio_high AR.actor.clip_ratio_c AR.actor.optim.lr AR.actor.use_dynamic_bsz AR.actor.ppo_mini_batch_size
AR.actor.ppo_max_token_len_per_gpu AR.actor.ulysses_sequence_parallel_size AR.actor.fsdp_config.param_offload
AR.actor.fsdp_config.optimizer_offload AR.ref.log_prob_max_token_len_per_gpu AR.rollout.name AR.rollout.mode
AR.rollout.tensor_model_parallel_size AR.rollout.multi_turn.max_user_turns AR.rollout.multi_turn.max_assistant_turns
AR.rollout.multi_turn.format AR.rollout.agent.agent_loop_config_path AR.rollout.gpu_memory_utilization AR.rollout.n
AR.rollout.val_kwargs.top_p AR.rollout.val_kwargs.temperature AR.rollout.val_kwargs.n
AR.rollout.multi_turn.tool_config_path custom_reward_function.path custom_reward_function.name trainer.logger
trainer.project_name trainer.experiment_name trainer.n_gpus_per_node trainer.val_before_train
trainer.log_val_generations trainer.nnodes trainer.save_freq trainer.default_local_dir trainer.test_freq
trainer.total_epochs
"""
"""AR: actor_rollout_ref."""
AGENTRL = """
trainer train_file max_pixels remove_experience drop_zero_advantage shift_labels db_connection_string
oss_connection_string enable_oss skip_non_positive_advantage model_name_or_path attention_implementation
output_router_logits trust_remote_code cpu_ram_efficient_loading torch_dtype tp_size pp_size ep_size cp_size
pad_to_multiple_of bypass_causal_mask_check enable_loss_parallel loss_seq_chunk_size activation_offloading
decoder_sparse_step remove_unused_columns pad_to_maximum dynamic_batching learning_rate epsilon epsilon_higher beta1
beta2 tune_vision adv_scaling max_tokens balance_sample token_level_loss out_of_date_decay importance_weight_cap_ratio
strict_in_bound log_entropy skip_length_normalization loss_calculater max_trained_count retrained_interval
minimal_advantage enable_sampling sync_sampling max_new_tokens max_prompt_tokens num_generations tool_call_parser
model_name inf_tp_size inf_ep_size max_concurrent_samples_per_process target_concurrency inf_mem_ratio top_k
presence_penalty frequency_penalty preferred_sampling_params resample_error_records mcp_server_name mcp_manager_url
mcp_auth_token max_turns min_turns repetition_early_stop_times enable_repetition_compress new_context agent_config_path
reserve_context_error_count efficient_rewarding compress_history weight_decay optim_args max_steps num_train_epochs
dataloader_drop_last dataloader_num_workers max_grad_norm logging_steps warmup_steps lr_scheduler_type bf16
per_device_train_batch_size gradient_accumulation_steps seed eval_strategy eval_steps run_name report_to
save_only_model save_steps dataloader_prefetch_factor accelerator_config output_dir config_file num_processes
machine_rank main_process_ip main_process_port num_machines
"""
