"""YAMLs of AgentJet: every key that its versions know loads, with a meaning or a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.config.why import explain_key
from ajet.schema.errors import ConfigError

WHOLE = """
ajet:
  project_name: ajet_default_project
  experiment_name: read_yaml_name
  experiment_dir: auto
  backbone: verl
  model: {path: /path/to/model}
  data: {max_prompt_length: 3000, max_response_length: 15000, train_batch_size: 32}
  rollout:
    user_workflow: tutorial.example_appworld.appworld->ExampleAgentScopeWorkflow
    force_disable_toolcalls: False
    max_env_worker: 64
    gamma: 1.0
    compute_madness_checklist: [nonsense]
    agent_madness_termination: True
    agent_madness_reward: -1.0
    max_response_length_in_one_turn: 4096
    max_model_len: 18000
    multi_turn: {max_sample_per_task: 30, max_steps: 30, expected_steps: 1}
    tensor_model_parallel_size: 1
    n_vllm_engine: 1
    max_num_seqs: 64
    name: vllm
    mode: async
    gpu_memory_utilization: 0.85
    num_repeat: 4
    temperature: 0.9
    top_p: 1.0
    top_k: -1
    step_skip_action: 0
    val_kwargs: {temperature: 0.0, top_k: -1, top_p: 1.0, do_sample: False, num_repeat: 1}
  task_reader:
    type: huggingface_dat_repo
    jsonl_dataset_file: {training: {file_path: a.jsonl}, validation: {file_path: b.jsonl}}
    env_service:
      env_type: appworld
      env_url: http://127.0.0.1:8080
      env_action_preference: code
      training_split: train
      validation_split: dev
    huggingface_dat_repo: {dataset_path: gsm8k, training_split: train, validation_split: validation}
    data_generation:
      document_reader: 
        {document_path: [a.pdf], languages: [eng], chunk_size: 5120, split_by: sentence, cache_enabled: true}
      query_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: q.jsonl}}}
      task_num: 10
      llm_model: qwen-long
      llm_response_length: 8192
      num_workers: 32
      sampling_params: {temperature: 0}
      deduplication_filter:
        enabled: true
        params: {similarity_threshold: 0.8, db_path: ./db, model: m, api_key: null, base_url: https://example.org/v1}
  task_judge:
    judge_type: customized_protocol
    judge_protocol: ajet.task_judge.env_service_as_judge->EnvServiceJudge
    alien_llm_model: qwen3
    alien_llm_response_length: 512
    rubrics_auto_grader:
      {model_name: qwen-max, grader_mode: pointwise, language: en, query_specific_generate_number: 1, min_score: 0,
       enable_categorization: false, categories_number: 5, grader_name: auto_grader, query_field: main_query,
       answer_field: final_answer, reference_field: answer, custom_evaluation_prompt: null, max_score: 1,
       input_data_type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: r.jsonl}}}
  context_tracker:
    timeline_merging_policy: {timeline_compare_level: text_and_image, ignore_tools: True}
    fix_retokenization_drift: True
    log_tool_format_check: False
    log_tool_format_error_detail: False
    detect_timeline_snap: False
    alien_llm_model: qwen3
    alien_llm_response_length: 512
  debug: {debug_max_parallel: 4, debug_first_n_tasks: 2, debug_vllm_port: 18000, debug_vllm_seed: 12345,
          debug_tensor_parallel_size: 4}
  trainer_common:
    val_before_train: False
    val_pass_n: 4
    val_only: False
    val_max_num_task_each_validation: null
    val_max_num_task_clip_method: fix_seed_random_n
    val_print_to_markdown_file_path: null
    train_print_to_markdown_file_path: null
    save_freq: 20
    test_freq: 20
    total_training_steps: null
    total_epochs: 50
    nnodes: 1
    n_gpus_per_node: 8
    logger: swanlab
    algorithm: {adv_estimator: grpo, use_kl_in_reward: False}
    mini_batch_num: 1
    fsdp_config: {param_offload: True, optimizer_offload: True}
    optim: {optimizer: AdamW, optimizer_impl: torch.optim, lr: 1.0e-06, lr_warmup_steps_ratio: 0.0, num_cycles: 0.5,
            total_training_steps: -1, weight_decay: 0.01, lr_warmup_steps: -1, betas: [0.9, 0.999], grad_clip: 20.0,
            min_lr_ratio: 0.0, lr_scheduler_type: constant, zero_indexed_step: true}
    use_kl_loss: True
    kl_loss_coef: 0.002
    kl_loss_type: low_var_kl
    ppo_epochs: 1
    loss_extra_scale_ratio: 1.0
    ulysses_sequence_parallel_size: 1
    checkpoint_base_dir: ./saved_checkpoints
    save_trajectory_as_json_file: False
    trinity_only__n_vllm_engine: 1
  lora: {lora_rank: 8, lora_alpha: 32, target_modules: all-linear, load_format: auto, layered_summon: false}
  enable_swarm_mode: False
  enable_interchange_server: False
  enable_experimental_interchange_server: True
  interchange_server: {interchange_method: ipc, interchange_server_port: auto, num_fastapi_process: 1}
  swarm_mode_sample_collection_method: rollout_until_finish_enough_tasks
  swarm_mode_sample_collection_max_cached_episodes: 9999
  task_runner: {wrapper_type: asyncio-with-gc, wrapper_multiprocessing_timeout: 3600, llm_infer_submit_method: async}
  execute_test: False
  execute_testing_lambda: ""
hydra:
  run: {dir: "saved_experiments/hydra_outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"}
"""


def load(folder: Path, text: str, *overrides: str, backbone: str = "debug"):
    (folder / "x.yaml").write_text(text)
    return load_experiment(folder / "x.yaml", backbone=backbone, overrides=overrides)


@pytest.mark.parametrize("backbone", ["debug", "local", "verl"])
def test_the_whole_of_its_defaults_loads(tmp_path, backbone):
    experiment = load(tmp_path, WHOLE, backbone=backbone)
    lora = experiment.ajet.trainer_common.lora
    assert (lora.rank, lora.alpha, experiment.ajet.trainer_common.optim.grad_clip) == (8, 32, 20.0)
    said = " ".join(each.name for each in experiment.list_idle_keys())
    for name in ("alien_llm", "swarm", "interchange_server", "markdown"):
        assert name in said
    again = tmp_path / "again.yaml"
    again.write_text(experiment.dump_resolved())
    trainer = load_experiment(again, backbone=backbone).ajet.trainer_common
    assert (trainer.lora, trainer.optim) == (lora, experiment.ajet.trainer_common.optim)


def test_another_name_means_ours_with_its_place(tmp_path):
    text = "ajet:\n  lora:\n    lora_rank: many\n"
    with pytest.raises(ConfigError, match="ajet.trainer_common.lora.rank is 'many'") as caught:
        load(tmp_path, text)
    assert caught.value.where.endswith("x.yaml:3:16")
    both = load(tmp_path, "ajet: {lora: {lora_rank: 8}, trainer_common: {lora: {rank: 4}}}")
    assert both.ajet.trainer_common.lora.rank == 4
    under = load(tmp_path, "ajet: {trainer_common: {lora: {lora_rank: 8, lora_alpha: 4, target_modules: [q_proj]}}}")
    told = {"rank": 8, "alpha": 4, "target_modules": ["q_proj"], "adapters": {}}
    assert under.ajet.trainer_common.lora.model_dump() == told
    several = load(tmp_path, "ajet: {lora: {adapters: {a: {lora_rank: 8, agents: [b]}, c: {lora_alpha: 2}}}}")
    adapters = several.ajet.trainer_common.lora.adapters
    assert (adapters["a"].rank, adapters["a"].agents, adapters["c"].alpha) == (8, ["b"], 2)
    given = load(tmp_path, "ajet: {}", "lora.lora_rank=2", "ajet.trainer_common.optim.lr_scheduler_type=cosine")
    assert (given.ajet.trainer_common.lora.rank, given.ajet.trainer_common.optim.lr_schedule) == (2, "cosine")
    assert next(iter(explain_key(given, "lora.lora_rank"))) == "ajet.trainer_common.lora.rank = 2"


def test_older_names_of_keys_and_sections_mean_ours_with_their_places(tmp_path):
    text = """ajet:
  task_reader:
    type: jsonl_dataset_file
    dataset_file: {training: {file_path: a.jsonl}, validation: {file_path: [5]}}
  rollout: {agentscope_workflow: w.py->W, agentscope_disable_toolcalls: true}
"""
    with pytest.raises(ConfigError, match="jsonl_dataset_file.validation.file_path") as caught:
        load(tmp_path, text)
    assert caught.value.where.endswith("x.yaml:4:76")
    rows = "task_reader.dataset_file.validation.file_path=b.jsonl"
    settings = load(tmp_path, text.replace("[5]", "c.jsonl"), rows).ajet
    files = settings.task_reader.jsonl_dataset_file
    assert (files.training.file_path, files.validation.file_path) == ("a.jsonl", "b.jsonl")
    assert (settings.rollout.user_workflow, settings.rollout.force_disable_toolcalls) == ("w.py->W", True)
    older = load(tmp_path, "ajet: {rollout: {agentscope_learn_protocol: v.py->V}}").ajet
    assert older.rollout.user_workflow == "v.py->V"


def test_keys_of_older_rubrics_mean_ours_or_are_said(tmp_path):
    told = load(
        tmp_path,
        """ajet:
  task_judge:
    judge_type: rubrics_auto_grader
    rubrics_auto_grader: {success_threshold: 0.7, sampling_mode: all_samples, generate_number: 3, max_retries: 3,
      aggregation_mode: keep_all, num_reference_samples: 20,
      input_data_type: dataset_file, dataset_file: {training: {file_path: r.jsonl}}}
""",
    )
    grader = told.ajet.task_judge.rubrics_auto_grader
    assert (grader.success_threshold, grader.query_specific_generate_number, grader.max_retries) == (0.7, 3, 3)
    assert grader.jsonl_dataset_file.training.file_path == "r.jsonl" and grader.input_data_type == "jsonl_dataset_file"
    idle = {key.rpartition(".")[2] for each in told.list_idle_keys() for key in each.keys}
    assert idle == {"sampling_mode", "aggregation_mode", "num_reference_samples"}


def test_what_is_understood_at_one_value_is_refused_at_another(tmp_path):
    with pytest.raises(ConfigError, match="trains on a batch once") as caught:
        load(tmp_path, "ajet:\n  trainer_common:\n    ppo_epochs: 3\n")
    assert "x.yaml:3:17 (ajet.trainer_common.ppo_epochs: 3)" in caught.value.where


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rm_weight: 1", ["config.my_section.rm_weight", "x.yaml:2:3"]),
        ("judge: {model: x}", ["section next to `ajet:`"]),
        ("rollout.num_repeat: 4", ["whose name contains a dot", "`rollout: {num_repeat: …}`"]),
        ("rollout: {val_kwargs.top_k: 4}", ["whose name contains a dot", "`val_kwargs: {top_k: …}`"]),
    ],
)
def test_keys_that_belong_elsewhere_say_where(tmp_path, text, expected):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"ajet:\n  {text}\n")
    shown = f"{caught.value.what} {caught.value.where} {caught.value.do}"
    assert all(words in shown for words in expected), shown


@pytest.mark.parametrize(
    "key",
    ["task_reader.type", "task_reader.data_generation.query_reader.type",
     "task_judge.rubrics_auto_grader.input_data_type"],
)  # fmt: skip
def test_an_older_readers_name_is_ours_and_none_is_refused_where_it_is_read(tmp_path, key):
    """AgentJet's own YAML of rubrics says `input_data_type: dataset_file`; what no reader has for a name is said when
    the YAML is read, and not by the judge at work."""
    node = load(tmp_path, "ajet: {}\n", f"{key}=dataset_file").ajet
    for part in key.split("."):
        node = getattr(node, part)
    assert node == "jsonl_dataset_file"
    with pytest.raises(ConfigError, match=key) as caught:
        load(tmp_path, "ajet: {}\n", f"{key}=jsonl_dataset_fil")
    assert "did you mean jsonl_dataset_file?" in caught.value.expected
