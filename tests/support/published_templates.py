"""Tokenizers with the chat templates of model families as they were published.

Most come out of the package trl, which ships them unchanged; `make setup` fetches its files, which are not installed.
Two families that it lacks are written here after the published ones.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import made

_FOLDER = Path(sys.prefix) / "share" / "trl" / "trl" / "chat_templates"

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|python_tag|>",
)  # fmt: skip
_GLM = (
    "<|endoftext|>", "[gMASK]", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<sop>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *_TAGS,
)  # fmt: skip
_HARMONY = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
    "<|message|>", "<|call|>",
)  # fmt: skip

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}"
    "{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

HERMES_PLAIN = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# What is particular to it: content beside calls is dropped, and the last tool result has no newline after its tag.
HERMES_TOOLS = """\
{{- bos_token }}
{{- '<|im_start|>system\\nYou are a function calling AI model. Here are the available tools: <tools> ' }}
{%- for tool in tools or [] %}{{- tool | tojson }}{%- if not loop.last %}{{- '\\n' }}{%- endif %}{%- endfor %}
{{- ' </tools>Answer with\\n<tool_call>\\n{"name": <name>, "arguments": <args-dict>}\\n</tool_call><|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>tool\\n' }}{%- endif %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if not loop.last %}{{- '\\n' }}{%- endif %}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>' }}{%- endif %}
{%- elif message.role == 'assistant' and message.tool_calls is defined %}
{{- '<|im_start|>assistant' }}
{%- for tool_call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
{{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@dataclass(frozen=True)
class Family:
    """Where a family's template is, and the tokens that it needs."""

    template: str | dict[str, str]
    """A file of trl's, or the text."""
    added: tuple[str, ...]
    eos: str
    bos: str | None = None


FAMILIES = {
    "qwen2.5": Family("qwen2_5.jinja", (*_CHATML, *_TAGS[:2]), "<|im_end|>"),
    "qwen3": Family("qwen3.jinja", (*_CHATML, *_TAGS), "<|im_end|>"),
    "qwen3.5": Family("qwen3_5_think.jinja", (*_CHATML, *_TAGS), "<|im_end|>"),
    "llama3": Family("llama3.jinja", _LLAMA, "<|eot_id|>", "<|begin_of_text|>"),
    "llama3.2": Family("llama3_2.jinja", _LLAMA, "<|eot_id|>", "<|begin_of_text|>"),
    "smollm2": Family(SMOLLM2, _CHATML, "<|im_end|>"),
    "hermes": Family(
        {"default": HERMES_PLAIN, "tool_use": HERMES_TOOLS},
        (*_CHATML, "<|begin_of_text|>", *_TAGS[:4]),
        "<|im_end|>",
        "<|begin_of_text|>",
    ),
    "glm4.5": Family("glm4moe.jinja", _GLM, "<|endoftext|>"),
    "gpt-oss": Family("gptoss.jinja", _HARMONY, "<|return|>", "<|startoftext|>"),
}


def published(file: str) -> str:
    """A template of trl's; skips the test where it is not at hand."""
    if not _FOLDER.is_dir():
        pytest.skip("the published chat templates are not here: `make setup` fetches them")
    return (_FOLDER / file).read_text()


@lru_cache(maxsize=16)
def family(name: str) -> Any:
    """The tokenizer of a family; skips the test where its template is not at hand."""
    told = FAMILIES[name]
    template = told.template
    if isinstance(template, str) and template.endswith(".jinja"):
        template = published(template)
    return made(template, told.added, told.eos, bos=told.bos)
