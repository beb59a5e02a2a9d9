"""The "first agent" tutorial, YAML by YAML as printed: each composes, and what it still lacks is one sentence."""

import pytest

from ajet.config import load_experiment
from ajet.schema.errors import ConfigError

HEAD = """
# ------------------ 不需要修改 ------------------
hydra:
  searchpath:
    - file://ajet/default_config
    - file://ajet/default_config/verl         # verl only
    - file://ajet/default_config/trinity      # trinity only

# ------------------ 不需要修改 ------------------
defaults:
  - verl_default # verl inherit 1/1
  - trinity_default # trinity inherit 1/1
  - ajet_default
  - _self_
"""
NAMED = "ajet:\n  project_name: math_agent\n" + HEAD
DATA = """
ajet:
  project_name: math_agent
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo:
      dataset_path: 'gsm8k/main'
      training_split: "train"
      validation_split: "test"
  data:
    train_batch_size: 264
    max_prompt_length: 3000
    max_response_length: 10000
"""
WORKFLOW = """
ajet:
  # ...
  rollout:
    user_workflow: workflow.py->MathAgentWorkflow

  task_judge:
    judge_protocol: tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge
"""
MODEL = """
ajet:
  model:
    path: Qwen/Qwen2.5-14B-Instruct
"""
TRAINING = """
ajet:
  # ...
  rollout:
    user_workflow: workflow.py->MathAgentWorkflow
    temperature: 0.7                    # 模型温度
    max_env_worker: 64                  # 最大的 rollout 多线程数量
    num_repeat: 4                       # 每个任务重复次数
    agent_madness_reward: 0.0           # 模型乱码输出时的强制 reward
    tensor_model_parallel_size: 1       # vllm 的并行参数
    max_num_seqs: 40                    # vllm 最大的并行 sequence 数量
    multi_turn:
      max_sample_per_task: 4
    compute_madness_checklist:          # 检查的模型乱码输出类型
      - "nonsense"
      - "wrong_toolcall"
    max_response_length_in_one_turn: 1024   # 一轮交互中的最长回复长度
    max_model_len: 13000                    # 模型的最长上下文长度

  trainer_common:
    save_freq: 99999        # 保存周期（每 n 步保存一次）
    test_freq: 99999        # 验证周期（每 n 步验证一次）
    total_epochs: 99999     # 训练 epoch 总量
    trinity_only__n_vllm_engine: 2  # vllm engine 数量

trinity:
  trainer:
    max_token_len_per_gpu: 13000
"""
WHOLE = (
    DATA
    + """
  model:
    path: Qwen/Qwen2.5-14B-Instruct
  task_judge:
    judge_protocol: tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge
"""
    + TRAINING.replace("ajet:\n  # ...\n", "")
    + HEAD
)
MODEL_PATH, USER_WORKFLOW, DATASET = (
    "ajet.model.path",
    "ajet.rollout.user_workflow",
    "huggingface_dat_repo.dataset_path",
)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (NAMED, [MODEL_PATH, USER_WORKFLOW, DATASET]),
        (DATA, [MODEL_PATH, USER_WORKFLOW]),
        (DATA + HEAD, [MODEL_PATH, USER_WORKFLOW]),
        (WORKFLOW, [MODEL_PATH, DATASET]),
        (MODEL, [USER_WORKFLOW, DATASET]),
        (TRAINING, [MODEL_PATH, DATASET]),
        (WHOLE, []),
    ],
)
def test_each_yaml_composes_and_says_what_it_lacks(tmp_path, text, missing):
    (tmp_path / "math_agent.yaml").write_text(text)
    experiment = load_experiment(tmp_path / "math_agent.yaml", backbone="debug")
    assert experiment.name == "math_agent"
    if not missing:
        experiment.require_ready()
        return
    with pytest.raises(ConfigError) as caught:
        experiment.require_ready()
    assert all(key in caught.value.what for key in missing) and "\n" not in caught.value.what
    others = {MODEL_PATH, USER_WORKFLOW, DATASET} - set(missing)
    assert not [key for key in others if key in caught.value.what]


def test_the_whole_yaml_means_what_it_says(tmp_path):
    (tmp_path / "math_agent.yaml").write_text(WHOLE)
    experiment = load_experiment(tmp_path / "math_agent.yaml", backbone="local")
    ajet = experiment.ajet
    assert (ajet.rollout.temperature, ajet.rollout.multi_turn.max_sample_per_task) == (0.7, 4)
    assert ajet.rollout.compute_madness_checklist == ["nonsense", "wrong_toolcall"]
    assert ajet.rollout.agent_madness_reward == 0.0 and ajet.trainer_common.save_freq == 99999
    assert experiment.backbone_overrides == {"trinity": {"trainer": {"max_token_len_per_gpu": 13000}}}
    assert [idle.name for idle in experiment.list_idle_keys()] == [
        "ajet.rollout.tensor_model_parallel_size",
        "ajet.trainer_common.trinity_only__n_vllm_engine",
        "trinity",
    ]
