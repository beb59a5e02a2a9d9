"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_vllm",
    about="the engine `vllm`: vLLM in child processes, or a running vLLM or SGLang server",
    packages=("vllm",),
    extra="vllm",
    engines={"vllm": "ajet_vllm.driver:VllmDriver"},
)
