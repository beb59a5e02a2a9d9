"""Register the kernel's own parts like the parts of any plug-in.

Invariant: each part has a single line without imports. A test compares each line with the named class.
"""

from __future__ import annotations

from ajet.config.plugin import EXTENSIONS_PANEL, MAIN_PANEL, RECORDS_PANEL, REMOTE_PANEL, Command, Plugin, PluginPart

PUBLISHED = ("training.file_path", "the file or folder of the benchmark")
ANSWER = "return WorkflowOutput(metadata={'final_answer': …}); a function may return the answer itself"
PLUGIN = Plugin(
    name="ajet",
    about="what comes with the package ajet itself",
    backbones={
        "debug": "ajet.backbone.descriptors:DEBUG",
        "local": "ajet.backbone.descriptors:LOCAL",
    },
    engines={
        "auto": "ajet.engine.drivers:TransformersDriver",
        "transformers": "ajet.engine.drivers:TransformersDriver",
        "endpoint": "ajet.engine.endpoint:EndpointEngine",
    },
    algorithms={
        "grpo": "ajet.algorithm.grpo:Grpo",
        "rloo": "ajet.algorithm.rloo:Rloo",
        "maxrl": "ajet.algorithm.maxrl:MaxRl",
        "gigpo": "ajet.algorithm.gigpo:Gigpo",
        "reinforce_plus_plus": "ajet.algorithm.reinforce_plus_plus:ReinforcePlusPlus",
        "gdpo": "ajet.algorithm.gdpo:Gdpo",
        "rae": "ajet.algorithm.rae:Rae",
        "echo": "ajet.algorithm.echo:Echo",
        "gae": "ajet.algorithm.gae:Gae",
        "distillation": "ajet.algorithm.distillation:Distillation",
        "gkd": "ajet.algorithm.gkd:Gkd",
        "opsd": "ajet.algorithm.self_distillation:SelfDistillation",
    },
    losses={
        "clipped": "ajet.algorithm.losses.clipped:ClippedLoss",
        "gspo": "ajet.algorithm.losses.gspo:GspoLoss",
        "cispo": "ajet.algorithm.losses.cispo:CispoLoss",
        "sapo": "ajet.algorithm.losses.sapo:SapoLoss",
        "sft": "ajet.algorithm.losses.sft:SftLoss",
        "clip_cov": "ajet.algorithm.losses.clip_cov:ClipCovLoss",
        "kl_cov": "ajet.algorithm.losses.kl_cov:KlCovLoss",
        "minirl": "ajet.algorithm.losses.minirl:MinirlLoss",
        "dppo_tv": "ajet.algorithm.losses.dppo:DppoTvLoss",
        "dppo_kl": "ajet.algorithm.losses.dppo:DppoKlLoss",
    },
    trackers={
        "console": "ajet.record.trackers.console:ConsoleTracker",
        "tensorboard": "ajet.record.trackers.tensorboard:TensorboardTracker",
        "wandb": PluginPart("ajet.record.trackers.wandb:WandbTracker", variables=("WANDB_API_KEY",)),
        "swanlab": PluginPart("ajet.record.trackers.swanlab:SwanlabTracker", variables=("SWANLAB_API_KEY",)),
        "mlflow": PluginPart(
            "ajet.record.trackers.mlflow:MlflowTracker",
            variables=(
                "MLFLOW_TRACKING_URI",
                "MLFLOW_TRACKING_TOKEN",
                "MLFLOW_TRACKING_USERNAME",
                "MLFLOW_TRACKING_PASSWORD",
            ),
        ),
    },
    isolations={
        "thread": "ajet.rollout.isolation.thread:ThreadIsolation",
        "loop": "ajet.rollout.isolation.shared_player:LoopIsolation",
        "loops": PluginPart("ajet.rollout.isolation.loops:LoopsIsolation", interactive=False),
        "process": PluginPart("ajet.rollout.isolation.process:ProcessIsolation", interactive=False),
    },
    stores={
        "run_directory": "ajet.store.run_store:RunStore",
        "sqlite": PluginPart("ajet.store.sqlite_driver:SqliteDriver", schemes=("sqlite",)),
    },
    readers={
        "huggingface_dat_repo": PluginPart(
            "ajet.task_reader.hugging_face:HuggingFaceReader", first_key=("dataset_path", "the data set")
        ),
        "jsonl_dataset_file": PluginPart(
            "ajet.task_reader.jsonl:JsonlReader", first_key=("training.file_path", "the task file")
        ),
        "random_dummy": "ajet.task_reader.random_dummy:RandomDummyReader",
        "reasoning_gym": PluginPart(
            "ajet.task_reader.reasoning_gym:ReasoningGymReader", first_key=("dataset", "the task family")
        ),
        "agentrl": PluginPart(
            "ajet.task_reader.agentrl:AgentrlReader",
            first_key=("training.file_path", "the task file"),
            scorer="agentcpm",
        ),
        "gsm8k": PluginPart("ajet.task_reader.benchmarks:Gsm8kReader", first_key=PUBLISHED, scorer="math"),
        "math": PluginPart("ajet.task_reader.benchmarks:MathReader", first_key=PUBLISHED, scorer="math"),
        "gaia": PluginPart("ajet.task_reader.benchmarks:GaiaReader", first_key=PUBLISHED, scorer="gaia"),
        "hotpotqa": PluginPart("ajet.task_reader.benchmarks:HotpotQaReader", first_key=PUBLISHED, scorer="f1"),
    },
    scorers={
        "exact": "ajet.task_judge.scorers.text:exact",
        "f1": "ajet.task_judge.scorers.text:f1",
        "contains": "ajet.task_judge.scorers.text:contains",
        "regex": "ajet.task_judge.scorers.text:RegexScorer",
        "multiple_choice": "ajet.task_judge.scorers.choices:multiple_choice",
        "numeric": "ajet.task_judge.scorers.numeric:numeric",
        "math": "ajet.task_judge.scorers.mathematics:MathScorer",
        "gaia": "ajet.task_judge.scorers.gaia:gaia",
        "json_schema": "ajet.task_judge.scorers.json_schema:JsonSchemaScorer",
    },
    judges={"customized_protocol": "ajet.task_judge.registry:open_by_reference"},
    services=(
        "ajet.engine.endpoint:services_of",
        "ajet.engine.teacher_endpoint:services_of",
    ),
    exports={
        "Task": "ajet.schema.task:Task",
        "WorkflowTask": "ajet.schema.task:WorkflowTask",
        "WorkflowOutput": "ajet.schema.task:WorkflowOutput",
        "ProcessReward": "ajet.schema.process_reward:ProcessReward",
        "Workflow": "ajet.workflow.workflow:Workflow",
        "AsyncSampler": "ajet.workflow.async_sampler:AsyncSampler",
        "ModelTuner": "ajet.workflow.tuner:ModelTuner",
        "AjetTuner": "ajet.workflow.tuner:AjetTuner",
        "bp": "ajet.workflow.breakpoint:bp",
        "Algorithm": "ajet.algorithm.contract:Algorithm",
        "AgentJetJob": "ajet.commands.job:AgentJetJob",
        "tune": "ajet.commands.tune:tune",
    },
    failure_hints={
        "no_model_call": (
            "give the client the tuner, or the `base_url` and `api_key` that `tuner.as_oai_baseurl_apikey()` returns"
        ),
        "calls_refused": (
            "correct the request that the message names; the agent's code hides the refusal by an `except`, or "
            "does not check the status"
        ),
        "returned_nothing": ANSWER,
        "wrong_type": ANSWER,
        "RewardFailure": "let `execute` return a finite number as the reward, or None if there is none",
        "timeout": "raise `rollout.episode_timeout`, or find the code that blocks",
    },
    commands={
        "init": Command(
            "ajet.cli.init:init",
            "Create a small project: a commented YAML, the agent, and settings for VS Code and coding agents.",
            panel=MAIN_PANEL,
        ),
        "plan": Command(
            "ajet.cli.plan:plan", "Print a run's plan and costs without starting the run.", panel=MAIN_PANEL
        ),
        "serve": Command(
            "ajet.cli.serve:serve",
            "Run a server on which external agents open episodes over HTTP; with --backbone local, train on them.",
            panel=REMOTE_PANEL,
        ),
        "sample": Command(
            "ajet.cli.sample:sample",
            "Run episodes for a trainer on another machine; any number of samplers may run.",
            panel=REMOTE_PANEL,
        ),
        "sft": Command(
            "ajet.cli.sft:sft",
            "Learn from given replies: rows of messages, pairs of them, or a run's best episodes.",
            panel=MAIN_PANEL,
        ),
        "status": Command(
            "ajet.cli.status:status",
            "Show the state of a run: phase, queues, rates, waiting side, staleness.",
            panel=MAIN_PANEL,
        ),
        "stop": Command("ajet.cli.stop:stop", "Stop a run as Ctrl-C would: it saves a checkpoint.", panel=MAIN_PANEL),
        "eval": Command(
            "ajet.cli.eval:evaluate",
            "Evaluate one or several models on held-out tasks and compare them. The same command again runs only "
            "what is missing.",
            panel=MAIN_PANEL,
        ),
        "export": Command(
            "ajet.cli.export:export",
            "Write a checkpoint as a model folder in Hugging Face layout; verl's shards are merged.",
            panel=MAIN_PANEL,
        ),
        "gc": Command(
            "ajet.cli.gc:gc",
            "List a run's removable files by kind and size; --yes deletes them.",
            panel=RECORDS_PANEL,
        ),
        "doctor": Command(
            "ajet.cli.doctor:doctor",
            "Check machine, packages, network and a model's template, or a store. Exit code 1 only for a problem.",
            panel=MAIN_PANEL,
        ),
        "plugins": Command(
            "ajet.cli.plugins:plugins",
            "List the plug-ins, what each adds to ajet, and why parts of it are missing.",
            panel=EXTENSIONS_PANEL,
        ),
        "config": Command("ajet.cli.config:app", "Inspect a configuration.", panel=MAIN_PANEL),
    },
)
