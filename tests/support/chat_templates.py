"""Small byte-level tokenizers with chat templates in the styles of the model families, for tests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_HERMES_HEAD = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nAnswer with <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
"""

_HERMES_CALLS = """\
{%- for tool_call in message.tool_calls %}
{%- set function = tool_call.function %}
{{- '\\n<tool_call>\\n{"name": "' }}{{- function.name }}{{- '", "arguments": ' }}
{{- function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
"""

_HERMES_TOOL = """\
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
"""

QWEN25 = (
    _HERMES_HEAD
    + """\
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or \
(message.role == 'assistant' and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
"""
    + _HERMES_CALLS
    + "{{- '<|im_end|>\\n' }}\n"
    + _HERMES_TOOL
    + """\
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
)

QWEN3 = (
    _HERMES_HEAD
    + """\
{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for message in messages[::-1] %}
{%- if ns.looking and message.role == 'user' %}
{%- set ns.looking = false %}{%- set ns.last = (messages | length - 1) - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- set thought = message.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content }}
{%- for tool_call in message.tool_calls or [] %}
{%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
{{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
"""
    + _HERMES_TOOL
    + """\
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
)

LLAMA3 = """\
{{- bos_token }}
{%- if tools %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nFunctions, to be called as {"name": ..., "parameters": ...}:' }}
{%- for tool in tools %}{{- '\\n\\n' }}{{- tool | tojson(indent=4) }}{%- endfor %}
{{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set function = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + function.name + '", "parameters": ' }}
{{- function.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINK = (*_CHATML, "<think>", "</think>", "<tool_call>", "</tool_call>")
_LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|python_tag|>",
)  # fmt: skip
STYLES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "smollm2": (SMOLLM2, _CHATML, "<|im_end|>"),
    "qwen25": (QWEN25, (*_CHATML, "<tool_call>", "</tool_call>"), "<|im_end|>"),
    "qwen3": (QWEN3, _THINK, "<|im_end|>"),
    "llama3": (LLAMA3, _LLAMA, "<|eot_id|>"),
}
_CORPUS = [
    "The quick brown fox jumps over the lazy dog. 0123456789",
    '{"name": "add", "arguments": {"a": 1, "b": 2}} user assistant system tool tool_response',
    "What is 12 + 30? The answer is \\boxed{42}.",
    "深度学习 naïve café π √ ≤",
]


@lru_cache(maxsize=8)
def tokenizer(style: str) -> Any:
    """A byte-level BPE tokenizer with the chat template of a family: smollm2, qwen25, qwen3 or llama3."""
    template, special, eos = STYLES[style]
    return made(template, special, eos, bos="<|begin_of_text|>" if style == "llama3" else None)


def made(template: str | dict[str, str], added: tuple[str, ...], eos: str, *, bos: str | None = None) -> Any:
    """A byte-level BPE tokenizer with a chat template; tokens that begin with `<|` or `[` are control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    control = [token for token in added if token.startswith(("<|", "["))]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    ready = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos, bos_token=bos)
    ready.add_tokens([token for token in added if token not in control])
    ready.chat_template = template
    return ready


def variant(style: str, *, template: str | None = None, eos: str | None = None) -> Any:
    """A family's tokenizer with another template or end token."""
    base = tokenizer(style)
    other = base.__class__(tokenizer_object=base.backend_tokenizer, eos_token=eos or STYLES[style][2])
    other.chat_template = STYLES[style][0] if template is None else template
    return other
