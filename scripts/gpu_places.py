"""Where ajet/ does something that only an accelerator shows, and what shows it.

Invariant: tests/scripts/test_gpu_check.py finds those places in the code (a name of CUDA, NCCL, Megatron, SGLang, of an
NPU or of NVIDIA's driver; a comparison with "cpu", whose other side is a GPU's), and the keys that split a model in
the schema, and holds both tables against them. A value is the name of a check of scripts/gpu_check.py that runs the
place; or the path of a test that runs both of its sides here, where it is text and configuration alone; or "": nobody
has, and the report of the check says so.
"""

from __future__ import annotations

REFUSALS = "plugins/ajet_verl/tests/test_verl_refusals.py"
COVERED = {
    "ajet/backbone/local/checkpoint.py::_list_tensors": "local",
    "ajet/backbone/local/checkpoint.py::read_checkpoint": "resume",
    "ajet/backbone/local/flat_weights.py::FlatWeights.dither": "tests",
    "ajet/backbone/local/flat_weights.py::make_zeros": "tests",
    "ajet/backbone/local/machine.py::choose_device": "local",
    "ajet/backbone/local/optimizer.py::FlatAdamW.step": "tests",
    "ajet/backbone/local/backbone.py::_measure_peak": "local",
    "ajet/backbone/local/backbone.py::run_rehearsal": "local",
    "ajet/backbone/local/trainer.py::Trainer.rehearse": "local",
    "ajet/backbone/local/tree_attention.py::TreePlan.convert_mask": "tests",
    "ajet/backbone/local/tree_attention.py::_attend_dense": "tests",
    "ajet/backbone/local/tree_attention.py::uses_subtrees": "tests",
    "ajet/backbone/requirements.py::has_nvidia": "doctor",
    "plugins/ajet_trinity/config.py::_build_node": "trinity",
    "plugins/ajet_trinity/config.py::_list_refused": "plugins/ajet_trinity/tests/test_trinity_config.py",
    "plugins/ajet_trinity/config.py::choose_device": "trinity",
    "plugins/ajet_trinity/config.py::compose_trinity_config": "trinity",
    "plugins/ajet_trinity/launch.py::find_python": "",  # once `make trinity-gpu` has run, which nobody has
    "plugins/ajet_trinity/processes/stage.py::TrinityStage.run": "trinity",
    "plugins/ajet_trinity/train.py::_build_environment": "trinity",
    "plugins/ajet_trinity/train.py::_build_needs": "trinity",
    "plugins/ajet_trinity/train.py::train_on_trinity": "trinity",
    "plugins/ajet_verl/launch.py::_check_engine": "doctor",
    "plugins/ajet_verl/launch.py::_check_flash_attention": "doctor",
    "plugins/ajet_verl/launch.py::check_verl": "doctor",
    "plugins/ajet_ray/cluster/gpus.py::list_gpus": "verl",
    "plugins/ajet_ray/cluster/gpus.py::refuse_busy": "verl",
    "plugins/ajet_verl/launch.py::VerlRunner.name_accelerators": "",  # the estimate of a dry run
    "plugins/ajet_verl/settings.py::build_needs": "",  # NPUs
    "plugins/ajet_verl/config/batches.py::check_fixed_micro_batches": "",  # Megatron without use_dynamic_bsz
    "plugins/ajet_verl/config/effective.py::MEGATRON_SIZES": REFUSALS,
    "plugins/ajet_verl/config/effective.py::EffectiveSettings.is_megatron": REFUSALS,
    "plugins/ajet_verl/config/effective.py::EffectiveSettings.model_parallel": REFUSALS,
    "plugins/ajet_verl/config/layer.py::_ajet_node": "verl",
    "plugins/ajet_verl/config/layer.py::_lay_sections": "plugins/ajet_verl/tests/test_verl_layer.py",
    "plugins/ajet_verl/config/layer.py::compose_verls_defaults": "plugins/ajet_verl/tests/test_verl_layer.py",
    "plugins/ajet_verl/config/layer.py::find_extra": "verl",
    "plugins/ajet_verl/config/refusals.py::_check_learning": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_lengths": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_machines": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_memory": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_parallel_sizes": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_strategy": REFUSALS,
    "plugins/ajet_verl/config/refusals.py::_check_trees": REFUSALS,
    "plugins/ajet_verl/cpu/__init__.py::build_environment": "",  # of the CPU alone
    "plugins/ajet_verl/settings.py::find_device": "verl",
    "plugins/ajet_verl/settings.py::_uses_megatron": "megatron",
    "plugins/ajet_verl/settings.py::build_environment": "megatron",
    "plugins/ajet_verl/settings.py::build_settings": "",  # a cluster that was there before: its GPUs are not this one's
    "plugins/ajet_verl/train.py::require_store": "plugins/ajet_ray/tests/test_verl_store_tickets.py",
    "plugins/ajet_verl/train.py::train_on_verl": "verl",
    "plugins/ajet_verl/trainer/trees.py::TreeEngine": "trees",
    "ajet/config/schema/trainer_common.py::TrainerConfig": "tests/contract/test_config_reads.py",
    "ajet/engine/verdict_cache.py::build_verdict_key": "local",
    "ajet/engine/stock_model.py::StockModel.__init__": "export",
    "ajet/engine/machine.py::resolve_device_kind": "local",
    "ajet/engine/thread_count.py::choose_threads": "local",
    "plugins/ajet_verl/config/layer.py::list_served_layers": "plugins/ajet_verl/tests/test_verl_layer.py",
    "plugins/ajet_verl/config/refusals.py::_check_replay": REFUSALS,
    "ajet/engine/machine.py::is_float32_default": "local",
    "ajet/engine/machine.py::measure_free_memory": "local",
    "ajet/engine/models.py::choose_fast_dtype": "local",
    "ajet/engine/rms_norm.py::_is_as_probed": "local",
    "ajet/engine/rms_norm.py::_is_replaceable": "local",
    "ajet/engine/drivers.py::choose_machine": "local",
    "plugins/ajet_vllm/server_detection.py::_detect_server": "plugins/ajet_vllm/tests/test_sglang_server_real.py",
    "ajet/engine/transformers/attention.py::_attend_block": "tests",
    "ajet/engine/transformers/attention.py::_attend_next_tokens": "tests",
    "ajet/engine/transformers/attention.py::_attend_stretch": "tests",
    "ajet/engine/transformers/engine.py::_default_cache_bytes": "local",
    "ajet/engine/transformers/linear_layers.py::_is_packable": "local",
    "ajet/engine/transformers/sampling.py::Sampler._compute_softmax": "tests",
    "plugins/ajet_vllm/versions.py::require_vllm": "",  # which extra is named where vLLM is not installed
    "plugins/ajet_vllm/engine.py::VllmEngine.__init__": "vllm",
    "plugins/ajet_vllm/launch.py::VllmLaunch.arguments": "vllm",
    "plugins/ajet_vllm/launch.py::memory": "vllm",
    "plugins/ajet_vllm/weights.py::device_buckets": "vllm",
    "plugins/ajet_vllm/worker.py::LiveWeights.ajet_commit": "vllm",
    "plugins/ajet_trl/process.py::run_training": "",
    "ajet/record/run_directory.py::_gpu_names": "local",
    "ajet/commands/doctor_checks.py::_check_gpus": "doctor",
    "ajet/commands/doctor_checks.py::check_packages": "doctor",
    "ajet/commands/gpu_estimate.py::find_own_gpu": "",  # the estimate of a dry run
    "ajet/commands/plan.py::show_plan": "",  # the same
    "plugins/ajet_cluster/kuberay.py::_RESOURCES": "",  # written for a cluster, run on none: tests read the text
    "plugins/ajet_cluster/kuberay.py::render_kuberay": "",
    "plugins/ajet_cluster/slurm.py::_format_accelerators": "",
    "plugins/ajet_cluster/slurm.py::_format_resources": "",
    "ajet/commands/model_card.py::_list_versions": "tests/contract/test_deploy.py",
    "ajet/commands/plan.py::_describe_steps": "beside",
    "ajet/commands/plan.py::_estimate_rows": "tests/commands/test_plan.py",
    "ajet/train/footprint.py::estimate_needs": "local",
    "ajet/commands/sampling/colocated.py::share_cores": "beside",
    "ajet/commands/tune.py::_choose_fitting_defaults": "tests/commands/test_tune_defaults.py",
}
"""Every such place, and what runs it."""

KEYS = {
    "rollout.name=sglang": "sglang",
    "rollout.tensor_model_parallel_size": "several",
    "trainer_common.device=npu": "",
    "trainer_common.megatron.context_parallel_size": "megatron",
    "trainer_common.megatron.expert_model_parallel_size": "",  # it takes a mixture of experts
    "trainer_common.megatron.pipeline_model_parallel_size": "megatron",
    "trainer_common.megatron.tensor_model_parallel_size": "megatron",
    "trainer_common.strategy=megatron": "megatron",
    "trainer_common.ulysses_sequence_parallel_size": "several",
}
"""Every key that splits a model over GPUs, and every value that only an accelerator runs, with the check that sets it;
"": none does."""
