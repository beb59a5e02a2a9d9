"""Tiny random models of the architectures that people train, each with what is special about it within reach.

Weights are large enough that attention is sharp; a sliding window, a chunk and a rope's border are shorter than the
samples; what only some layers do, one of the few layers does.
"""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 97
COMMON: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.2,
)
EXPERTS: dict[str, Any] = dict(
    moe_intermediate_size=16, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2
)
GPT: dict[str, Any] = dict(n_embd=32, n_layer=2, n_head=4, n_positions=512, n_inner=48)
WINDOW: dict[str, Any] = dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])
LONG: dict[str, Any] = dict(
    original_max_position_embeddings=16,
    rope_parameters=dict(
        rope_type="longrope",
        rope_theta=10000.0,
        short_factor=[1.0] * 4,
        long_factor=[2.0, 4.0, 8.0, 16.0],
        original_max_position_embeddings=16,
    ),
)
DYNAMIC: dict[str, Any] = dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0))
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2 and 3, SmolLM 2, Falcon 3": ("llama", {}),
    "Llama, dynamic rope": ("llama", DYNAMIC),
    "Mistral": ("mistral", dict(sliding_window=8)),
    "Mixtral": ("mixtral", EXPERTS | dict(sliding_window=None)),
    "Ministral": ("ministral", WINDOW),
    "Qwen 2, 2.5": ("qwen2", {}),
    "Qwen 3": ("qwen3", {}),
    "Qwen 3, mixture of experts": ("qwen3_moe", EXPERTS),
    "Gemma": ("gemma", {}),
    "Gemma 2": (
        "gemma2",
        WINDOW | dict(attn_logit_softcapping=2.0, final_logit_softcapping=4.0, query_pre_attn_scalar=8),
    ),
    "Gemma 3": ("gemma3_text", WINDOW | dict(query_pre_attn_scalar=8)),
    "VaultGemma": ("vaultgemma", WINDOW | dict(attn_logit_softcapping=2.0, query_pre_attn_scalar=8)),
    "gpt-oss": ("gpt_oss", WINDOW | EXPERTS),
    "Phi 1, 2": ("phi", dict(num_key_value_heads=4)),
    "Phi 3, 4": ("phi3", {}),
    "Phi 3.5, 4 mini, longrope": ("phi3", LONG),
    "SmolLM 3": ("smollm3", dict(no_rope_layers=[1, 0])),
    "OLMo 2": ("olmo2", {}),
    "OLMo 3": ("olmo3", WINDOW),
    "Granite": ("granite", dict(attention_multiplier=0.3, logits_scaling=2.0, residual_multiplier=0.7)),
    "Command R7B, Cohere 2": ("cohere2", WINDOW | dict(logit_scale=0.5)),
    "GLM 4": ("glm4", {}),
    "DeepSeek V3": (
        "deepseek_v3",
        EXPERTS
        | dict(q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_group=1)
        | dict(topk_group=1, num_key_value_heads=4, first_k_dense_replace=1),
    ),
    "EXAONE 4": ("exaone4", WINDOW),
    "Apertus": ("apertus", {}),
    "StarCoder 2": ("starcoder2", dict(sliding_window=8)),
    "AFMoE": ("afmoe", WINDOW | EXPERTS),
    "StableLM": ("stablelm", {}),
    "Nemotron 4": ("nemotron", {}),
    "GPT-NeoX, Pythia": ("gpt_neox", {}),
    "GPT-2": ("gpt2", GPT),
    "OPT": ("opt", dict(ffn_dim=48, word_embed_proj_dim=32)),
    "Llama 4 (text)": (
        "llama4_text",
        EXPERTS | dict(attention_chunk_size=8, intermediate_size_mlp=48, no_rope_layers=[1, 0]),
    ),
    "LFM 2": ("lfm2", dict(layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "Qwen 3 Next": (
        "qwen3_next",
        EXPERTS
        | dict(layer_types=["linear_attention", "full_attention"], shared_expert_intermediate_size=16)
        | dict(linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8),
    ),
    "Falcon H1": (
        "falcon_h1",
        dict(mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8),
    ),
    "Mamba": ("mamba", dict(state_size=4)),
}


def tiny(family: str, *, seed: int = 0, **more: Any) -> Any:
    """A model of the family in float32, in evaluation mode, attending as transformers' eager implementation. `more`:
    other entries of its configuration."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, special = FAMILIES[family]
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[kind](**{**COMMON, **special, **more})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
