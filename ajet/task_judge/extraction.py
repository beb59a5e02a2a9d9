r"""Extracts the answer from a model's reply.

Invariant: no text raises an error, every function is linear in the text, and None means no answer in the requested
form. Text in a <think> part is no answer. The last statement wins, since models correct themselves; `first` selects the
first one, as GAIA's scorer does.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import BoundaryError

_BOX = re.compile(r"(?:\\boxed|\\fbox|\x08oxed|\x0cbox)\s*\{")
r"""A box's opening. "\b" and "\f" are escapes in JSON and Python, so a box that a model wrote into a tool call's
arguments arrives as a control character and the rest."""
_ANSWER = re.compile(r"<(/?)answer>", re.IGNORECASE)
_THINK = re.compile(
    r"<(/?)(?:think|thinking|thought|thoughts|seed:think)>|\[(/?)THINK\]|◁(/?)think▷|<\|(?:START|(END))_THINKING\|>",
    re.IGNORECASE,
)
"""The marks of thoughts: DeepSeek and Qwen; Seed; Magistral; Kimi; Command A."""
_HASHES = re.compile(r"####[ \t]*([^\n]*)")


def answer_text(answer: Any) -> str:
    """Return the text of an answer; "" for None.

    The answer is a string, content blocks such as {"type": "text", "text": …}, or such blocks printed with str(), as
    AgentScope does.
    """
    if answer is None:
        return ""
    if isinstance(answer, str):
        blocks = _parse_printed_blocks(answer)
        return answer if blocks is None else _join_blocks(blocks)
    if isinstance(answer, dict):
        answer = [answer]
    if isinstance(answer, (list, tuple)) and answer and all(_is_block(block) for block in answer):
        return _join_blocks(answer)
    return str(answer)


def strip_thoughts(text: str) -> str:
    """Return the text without the model's reasoning (<think>…</think>, [THINK] and other families' tags).

    Reasoning without an end tag reaches to the end of the text. An end tag without a start tag ends reasoning that
    began in the prompt, as in some chat templates.
    """
    parts: list[str] = []
    start, thinking = 0, False
    for tag in _THINK.finditer(text):
        if any(tag.groups()):  # an end tag: only end tags have a group that matches
            if not thinking:  # without a start tag, all text so far was reasoning
                parts.clear()
            start, thinking = tag.end(), False
        elif not thinking:
            parts.append(text[start : tag.start()])
            thinking = True
    if not thinking:
        parts.append(text[start:])
    return "".join(parts)


def find_thought_ends(text: str) -> list[int]:
    """Return the index after each tag that ends reasoning."""
    # Only end tags have a group that matches.
    return [tag.end() for tag in _THINK.finditer(text) if any(tag.groups())]


def find_boxes(text: str) -> list[str]:
    r"""Return the contents of all \boxed{} and \fbox{} outside <think>, in order.

    Braces nest and may be escaped; unclosed boxes are skipped; of nested boxes the outer one counts; `\boxed{{42}}`
    gives 42.
    """
    text = strip_thoughts(text)
    boxes: list[str] = []
    closing_brace_by_opening = _match_braces(text)
    last_box_end = 0
    for box in _BOX.finditer(text):
        box_end = closing_brace_by_opening.get(box.end() - 1)
        if box.start() < last_box_end or box_end is None:  # inside the previous box, or unclosed
            continue
        boxes.append(_unwrap_box(text[box.end() : box_end]))
        last_box_end = box_end
    return boxes


def boxed_answer(text: Any, *, first: bool = False) -> str | None:
    """Return the content of the last (or first) non-empty box; "" if all are empty, None without a box."""
    boxes = find_boxes(answer_text(text))
    return next((content for content in (boxes if first else reversed(boxes)) if content), "" if boxes else None)


def tagged_answer(text: Any, *, first: bool = False) -> str | None:
    """Return the content of the last (or first) <answer>…</answer> outside <think>; None without a closed tag."""
    text, start, answer = strip_thoughts(answer_text(text)), None, None
    for tag in _ANSWER.finditer(text):
        if not tag.group(1):
            start = tag.end()
        elif start is not None:
            answer, start = text[start : tag.start()].strip(), None
            if first:
                break
    return answer


def hash_answer(text: Any) -> str | None:
    """Return the text after the last `####` up to the end of its line, as in GSM8K: "#### 1,234" gives "1,234".

    Returns:
        None without `####`.
    """
    answers = _HASHES.findall(strip_thoughts(answer_text(text)))
    return answers[-1].strip() if answers else None


def extract_answer(text: Any) -> str | None:
    """Return the last box's content, else the last <answer> tags' content, else the text after ####.

    A form with empty content is skipped. None if no form has content.
    """
    for form in (boxed_answer, tagged_answer, hash_answer):
        answer = form(text)
        if answer:
            return answer
    return None


def _match_braces(text: str) -> dict[int, int]:
    """Return the index of the closing brace for each opening brace that has one; escaped braces do not count."""
    closing_by_opening: dict[int, int] = {}
    open_braces: list[int] = []
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):  # the first alternative skips escaped braces
        if brace.group() == "{":
            open_braces.append(brace.start())
        elif brace.group() == "}" and open_braces:
            closing_by_opening[open_braces.pop()] = brace.start()
    return closing_by_opening


def _unwrap_box(content: str) -> str:
    """Return the content of a box without braces, boxes and white space around all of it: ` {42} ` gives `42`."""
    closing_by_opening = _match_braces(content)
    start, stop = 0, len(content)
    while True:
        while start < stop and content[start].isspace():
            start += 1
        while stop > start and content[stop - 1].isspace():
            stop -= 1
        inner_box = _BOX.match(content, start, stop)
        opening = inner_box.end() - 1 if inner_box else start
        if opening >= stop or content[opening] != "{" or closing_by_opening.get(opening) != stop - 1:
            return content[start:stop]
        start, stop = opening + 1, stop - 1


def _is_block(part: Any) -> bool:
    """Return True for a content block: a dict with `text` or a string `type`."""
    return isinstance(part, dict) and isinstance(part.get("type", "text"), str) and ("type" in part or "text" in part)


def _join_blocks(blocks: Any) -> str:
    """Return the texts of the text blocks, one a line. Other blocks, such as images, are left out."""
    texts = [block.get("text") for block in blocks if block.get("type", "text") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def _parse_printed_blocks(text: str) -> list[dict[str, Any]] | None:
    """Return the content blocks of a text that is a printed list of blocks (Python or JSON), else None."""
    printed = text.strip()
    if not (printed.startswith("[{") and printed.endswith("}]")):
        return None
    for parse in (ast.literal_eval, json.loads):
        try:
            value = parse(printed)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and all(_is_block(block) for block in value):
            return value
    return None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form in which answers are written: the instruction for the model, and the parser."""

    instruction: str  # to the model
    read: Callable[[str], str | None]
    """Returns None if the text has no answer in this form."""


FORMS = {
    "": AnswerForm("Answer when you know it.", strip_thoughts),
    "answer": AnswerForm("Give your final answer as <answer>YOUR ANSWER</answer>.", tagged_answer),
    "boxed": AnswerForm("Give your final answer as \\boxed{YOUR ANSWER}.", boxed_answer),
}


def find_form_name(metadata: Mapping[str, Any], otherwise: str | None = None) -> str:
    """Return the name of the answer form that a task's metadata selects, or "".

    Args:
        metadata: The task's row; its `answer_schema` is the name of the form.
        otherwise: Name of the form for tasks that select none.

    Raises:
        BoundaryError: the name is unknown.
    """
    form_name = metadata.get("answer_schema") or otherwise or ""
    if form_name not in FORMS:
        form_names = ", ".join(name for name in FORMS if name)
        raise BoundaryError(f"the task's answer_schema is {form_name!r}; it must be one of {form_names}")
    return str(form_name)


def find_form(metadata: Mapping[str, Any], otherwise: str | None = None) -> AnswerForm:
    """Return the answer form that a task's metadata selects. Raises BoundaryError for an unknown name."""
    return FORMS[find_form_name(metadata, otherwise)]
