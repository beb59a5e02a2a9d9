"""What comes with ajet and has a name in a YAML: backbones, algorithms, losses, trackers, isolations, stores, readers,
workflows, scorers.

Invariant: these tables are the only lists of them; the root hands them to the configuration, and schema, documentation
and the rooms that own the code ask there. Nothing is imported for a line but what describes it; a contract test holds
each line against its class.
"""

from __future__ import annotations

from ajet.backbone.descriptors import BACKBONES
from ajet.config.catalogue import AlgorithmPart, Catalogue, LossPart, Part

ALGORITHMS = {
    "grpo": AlgorithmPart(
        "ajet.algorithm.grpo->Grpo",
        advantage="(r_i − mean(r)) / (std(r) + 1e-6), std with k − 1 in the denominator; r_i − mean(r) with "
        "`norm_adv_by_std: false`",
        paper="DeepSeekMath, arXiv 2402.03300, section 4.1.1; Dr.GRPO, arXiv 2503.20783, section 3.2",
        needs=frozenset({"group"}),
    ),
    "rloo": AlgorithmPart(
        "ajet.algorithm.rloo->Rloo",
        advantage="r_i − mean of the other r_j",
        paper="Back to Basics, arXiv 2402.14740, section 3.3",
        needs=frozenset({"group"}),
    ),
    "gigpo": AlgorithmPart(
        "ajet.algorithm.gigpo->Gigpo",
        advantage="that of `grpo`, plus `process_weight` × (R_t − mean) / (std + 1e-6) over all steps of the group in "
        "the same state; R_t is the return of step t, discounted by `step_discount`",
        paper="GiGPO, arXiv 2505.10978, section 4",
        needs=frozenset({"group"}),
    ),
    "reinforce_plus_plus": AlgorithmPart(
        "ajet.algorithm.reinforce_plus_plus->ReinforcePlusPlus",
        advantage="(r_i − mean) / (std + 1e-6) over the episodes of the whole batch",
        paper="REINFORCE++, arXiv 2501.03262, section 3",
    ),
    "gdpo": AlgorithmPart(
        "ajet.algorithm.gdpo->Gdpo",
        advantage="A / std(A) over the batch, A the sum over the scorers n of `reward_weights` × (r_n,i − mean(r_n)) / "
        "(std(r_n) + 1e-6)",
        paper="GDPO, arXiv 2601.05242",
        needs=frozenset({"group"}),
    ),
    "gae": AlgorithmPart(
        "ajet.algorithm.gae->Gae",
        advantage="of its token t: δ_t + `gamma` `lam` × that of its next token, δ_t = r_t + `gamma` V_t+1 − V_t, V by "
        "a value head; with `norm_adv_by_std` less the batch's mean, divided by its standard deviation",
        paper="PPO, arXiv 1707.06347; GAE, arXiv 1506.02438, equation 16",
        needs=frozenset({"critic"}),
    ),
    "distillation": AlgorithmPart(
        "ajet.algorithm.distillation->Distillation",
        advantage="of its token t: `weight` × (log π_teacher − log π), plus `reward_weight` × that of `grpo`",
        paper="GKD, arXiv 2306.13649; [Thinking Machines, "
        "2025](https://thinkingmachines.ai/blog/on-policy-distillation/)",
        needs=frozenset({"teacher"}),
    ),
}
LOSSES = {
    "clipped": LossPart(
        "ajet.algorithm.losses.clipped->Clipped",
        formula="max(−A·ρ, −A·clip(ρ, 1 − clip_low, 1 + clip_high)), for A < 0 at most −A·clip_dual",
        paper="PPO, arXiv 1707.06347, section 3; DAPO's clip-higher, arXiv 2503.14476, section 3.1; dual clip, arXiv "
        "1912.09729, section 3",
    ),
    "gspo": LossPart(
        "ajet.algorithm.losses.gspo->Gspo",
        formula="max(−A·s, −A·clip(s, 1 − clip_low, 1 + clip_high)), s = exp(mean of log ρ over the token's reply)",
        paper="GSPO, arXiv 2507.18071, equation 5 and section 4.3",
    ),
    "cispo": LossPart(
        "ajet.algorithm.losses.cispo->Cispo",
        formula="−sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·log π",
        paper="CISPO in MiniMax-M1, arXiv 2506.13585, section 3.1",
    ),
    "sapo": LossPart(
        "ajet.algorithm.losses.sapo->Sapo",
        formula="−A·(4/τ)·σ(τ(ρ − 1)), τ is `tau_positive` where A > 0, else `tau_negative`",
        paper="SAPO, arXiv 2511.20347, section 3",
    ),
    "sft": LossPart(
        "ajet.algorithm.losses.sft->Sft",
        formula="−A·log π",
        paper="supervised fine-tuning where A = 1: InstructGPT, arXiv 2203.02155, section 3.5",
    ),
    "clip_cov": LossPart(
        "ajet.algorithm.losses.clip_cov->ClipCov",
        formula="that of `clipped`; 0 for `covariance.share` of the tokens, drawn from those whose covariance "
        "(log π − mean)·(A − mean) lies between `low` and `high`",
        paper="Clip-Cov, arXiv 2505.22617, section 4",
    ),
    "kl_cov": LossPart(
        "ajet.algorithm.losses.kl_cov->KlCov",
        formula="−A·ρ, plus `covariance.beta`·abs(log ρ) for the `share` of the tokens with the largest covariance",
        paper="KL-Cov, arXiv 2505.22617, section 4",
    ),
    "minirl": LossPart(
        "ajet.algorithm.losses.minirl->Minirl",
        formula="−sg(ρ)·A·log π",
        paper="MiniRL, arXiv 2512.01374, section 2; AgentRL's MINIRL",
    ),
}
TRACKERS = {
    "console": Part("ajet.record.trackers.console->ConsoleTracker"),
    "tensorboard": Part("ajet.record.trackers.tensorboard->TensorboardTracker"),
    "wandb": Part("ajet.record.trackers.wandb->WandbTracker", variables=("WANDB_API_KEY",)),
    "swanlab": Part("ajet.record.trackers.swanlab->SwanlabTracker", variables=("SWANLAB_API_KEY",)),
    "mlflow": Part(
        "ajet.record.trackers.mlflow->MlflowTracker",
        variables=(
            "MLFLOW_TRACKING_URI",
            "MLFLOW_TRACKING_TOKEN",
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
        ),
    ),
}
ISOLATIONS = {
    "thread": Part("ajet.rollout.isolation.thread->ThreadIsolation"),
    "loop": Part("ajet.rollout.isolation.loop->LoopIsolation"),
    "loops": Part("ajet.rollout.isolation.loops->LoopsIsolation", interactive=False),
    "process": Part("ajet.rollout.isolation.process->ProcessIsolation", interactive=False),
    "sandbox": Part("ajet.rollout.isolation.sandbox->SandboxIsolation", interactive=False),
}
STORES = {
    "run_directory": Part("ajet.store.run_store->RunStore"),
    "sqlite": Part("ajet.store.sqlite_store->SqliteStore"),
    "mongodb": Part("ajet.store.mongo->MongoStore", variables=("AJET_STORE_USER", "AJET_STORE_PASSWORD")),
}
_PUBLISHED = ("training.file_path", "the benchmark's file or folder")
READERS = {
    "huggingface_dat_repo": Part(
        "ajet.task_reader.hugging_face->HuggingFaceReader", first_key=("dataset_path", "the data set")
    ),
    "jsonl_dataset_file": Part(
        "ajet.task_reader.jsonl->JsonlReader", first_key=("training.file_path", "the task file")
    ),
    "random_dummy": Part("ajet.task_reader.random_dummy->RandomDummyReader"),
    "reasoning_gym": Part(
        "ajet.task_reader.reasoning_gym->ReasoningGymReader", first_key=("dataset", "the task family")
    ),
    "env_service": Part("ajet.task_reader.env_service->EnvServiceReader"),
    "agentrl": Part(
        "ajet.task_reader.agentrl->AgentrlReader", first_key=("training.file_path", "the task file"), scorer="agentcpm"
    ),
    "gsm8k": Part("ajet.task_reader.benchmarks->Gsm8kReader", first_key=_PUBLISHED, scorer="math"),
    "math": Part("ajet.task_reader.benchmarks->MathReader", first_key=_PUBLISHED, scorer="math"),
    "gaia": Part("ajet.task_reader.benchmarks->GaiaReader", first_key=_PUBLISHED, scorer="gaia"),
    "hotpotqa": Part("ajet.task_reader.benchmarks->HotpotQaReader", first_key=_PUBLISHED, scorer="f1"),
    "data_generation": Part(
        "ajet.task_reader.generation->GenerationReader", first_key=("document_reader.document_path", "the documents")
    ),
    "tracing": Part("ajet.task_reader.tracing->TracingReader", first_key=("sources", "the traces")),
}
WORKFLOWS = {
    "mcp_agent": Part(
        "ajet.workflow.mcp_agent->McpAgentWorkflow",
        variables=("MCP_SERVER_TOKEN", "BROWSE_LLM_BASE_URL", "BROWSE_LLM_MODEL_NAME", "BROWSE_LLM_API_KEY"),
    )
}
SCORERS = {
    "exact": Part("ajet.task_judge.scorers.text->exact"),
    "f1": Part("ajet.task_judge.scorers.text->f1"),
    "contains": Part("ajet.task_judge.scorers.text->contains"),
    "regex": Part("ajet.task_judge.scorers.text->RegexScorer"),
    "multiple_choice": Part("ajet.task_judge.scorers.choices->multiple_choice"),
    "numeric": Part("ajet.task_judge.scorers.numeric->numeric"),
    "math": Part("ajet.task_judge.scorers.mathematics->MathScorer"),
    "gaia": Part("ajet.task_judge.scorers.gaia->gaia"),
    "json_schema": Part("ajet.task_judge.scorers.json_schema->JsonSchemaScorer"),
    "code": Part("ajet.task_judge.scorers.code->CodeScorer"),
    "agentcpm": Part("ajet.task_judge.model_judge->ModelJudge"),
    "llm": Part("ajet.task_judge.model_judge->ModelJudge"),
    "rubric": Part("ajet.task_judge.rubrics.scorer->RubricScorer"),
}
SERVICES = (
    "ajet.environment.services.chosen->services_of",
    "ajet.environment.mcp.reachable->services_of",
    "ajet.environment.browse.reachable->services_of",
    "ajet.engine.endpoint->services_of",
    "ajet.engine.teacher_endpoint->services_of",
    "ajet.task_judge.model_judge.reachable->services_of",
)
EMBEDDERS = {"all-minilm-l6-v2": Part("ajet.engine.embeddings->MiniLm")}
CATALOGUE = Catalogue(
    BACKBONES, ALGORITHMS, LOSSES, TRACKERS, ISOLATIONS, STORES, READERS, WORKFLOWS, SCORERS, SERVICES, EMBEDDERS
)
