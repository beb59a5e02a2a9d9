"""Parse fenced code blocks in a model's reply by CommonMark's rules.

Invariant: all readers of fenced replies use this module, so languages, attributes, CRLF, `~~~`, list items and longer
fences mean the same everywhere. Two departures from CommonMark: a line with HTML (for example `<answer>`) does not hide
a block below, and incomplete blocks may be repaired, because models forget closing fences.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_REPAIRS = 8
"""Limit on repaired blocks of a reply, because each repair may read the rest of the reply."""
MAX_ENDS = 16
"""Limit on tried ends of an incomplete block."""
_PYTHON = re.compile(r"(?:i|c)?python[\d.]*|py[23]?|pypy3?", re.IGNORECASE)
_GLUED_OPENING = re.compile(r"(?<![`~])(?:(?:`{3,}|~{3,})[A-Za-z][\w+.#-]*|(?<=>)`{3,})[ \t]*$")
"""A fence opening at the end of a text line or after a tag. Models write such fences; CommonMark ignores them."""
_GLUED_CLOSING = re.compile(r"[ \t]*(?:`{3,}|~{3,})[ \t]*(?=</\w+>)")
_DEEP_FENCE = re.compile(r"^([ \t]{4,}|[ \t]*\t)(?:`{3,}|~{3,})", re.MULTILINE)
_LIST_MARKS = " \t>*+-.)0123456789"
_HUGE_NUMBER = re.compile(r"\d{4301,}")
_BUILTIN_NAMES = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """A fenced code block of a text, with its language and its first and last line."""

    language: str
    """First word of the info string, in lower case and without braces, or ""."""
    content: str
    start: int
    """Line of the opening fence, from 0."""
    stop: int
    """Line after the closing fence."""

    @property
    def is_python(self) -> bool:
        """True if the block is labelled as Python."""
        return _PYTHON.fullmatch(self.language) is not None


def read_fenced_blocks(text: str, is_complete: Callable[[str], bool] | None = None) -> list[FencedBlock]:
    """Return the fenced blocks of a reply in order.

    Args:
        text: The reply.
        is_complete: Decides if a block's content is complete, for example compiles. A block that does not pass ends at
            the first later fence with passing content, else before the next opening fence inside.
    """
    lines = _split_lines(text)
    blocks: list[FencedBlock] = []
    repairs = 0
    fences = _parse_fences(lines, 0)
    while fences:
        token, offset = fences.pop(0)
        block = _build_block(token, offset)
        if is_complete is not None and repairs < MAX_REPAIRS and not is_complete(block.content):
            repaired = _repair_block(block, token.markup, lines, is_complete)
            if repaired is not None:
                repairs += 1
                fences = _parse_fences(lines, repaired.stop)
                block = repaired
        blocks.append(block)
    return blocks


def unfence(text: str, is_complete: Callable[[str], bool] | None = None) -> str:
    """Return the content of the fenced block if the text is nothing but one block, else the stripped text."""
    text = text.strip()
    blocks = read_fenced_blocks(text, is_complete)
    return blocks[0].content.strip() if len(blocks) == 1 and _is_around(blocks[0], text) else text


def read_program(reply: str) -> str:
    """Return the Python program in a reply, or the complete reply without a fenced block.

    The program is the last block labelled as Python, else the last without a label, else the last. Blocks with only a
    value, for example sample output, are the last resort. Earlier Python blocks with needed definitions are prepended,
    because models split programs.
    """
    blocks = [block for block in read_fenced_blocks(reply, is_python_source) if block.content.strip()]
    if not blocks:
        return reply
    programs = [block for block in blocks if _is_program(block)]
    python_programs = [block.content for block in programs if block.is_python]
    if python_programs:
        return _join_parts(python_programs)
    unlabelled_programs = [block.content for block in programs if not block.language]
    if unlabelled_programs:
        return _join_parts(unlabelled_programs)
    content = next((block.content for block in reversed(blocks) if block.is_python or not block.language), None)
    content = blocks[-1].content if content is None else content
    return read_program(content) if read_fenced_blocks(content) else content  # a block of Markdown


def is_python_source(text: str) -> bool:
    """Return True if the text parses as Python."""
    return parse_python(text) is not None


def has_huge_number(text: str) -> bool:
    """Return True if a text has a number of over 4,300 digits, beyond Python's default limit."""
    return _HUGE_NUMBER.search(text) is not None


@lru_cache(maxsize=64)
def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree of a text, or None for invalid Python. Numbers of over 4,300 digits are read as 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a program's own invalid escapes
            return ast.parse(_HUGE_NUMBER.sub("0", text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: nested too deeply for the parser
        return None


@lru_cache(maxsize=1)
def _make_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Inline text is of no interest, and HTML blocks would hide a fence below a line such as <answer>.
    return MarkdownIt("commonmark").disable(["html_block", "inline"])


def _split_lines(text: str) -> list[str]:
    """Return the lines of a reply, with a line break added at fences glued to text or to a tag such as `</answer>`."""
    lines: list[str] = []
    for line in re.sub(r"\r\n?", "\n", text).split("\n"):
        opening = _GLUED_OPENING.search(line)
        closing = _GLUED_CLOSING.match(line)
        # There is text before the fence, not only a list mark.
        if opening and line[: opening.start()].strip(_LIST_MARKS):
            lines += [line[: opening.start()], line[opening.start() :]]
        elif closing:
            lines += [line[: closing.end()], line[closing.end() :]]
        else:
            lines.append(line)
    return lines


def _parse_fences(lines: list[str], start: int) -> list[tuple[Token, int]]:
    """Return the fences from line `start` on, each as (token of markdown-it, `start`)."""
    text = "\n".join(lines[start:])
    fences = [token for token in _make_parser().parse(text) if token.type == "fence"]
    if not fences and (deep_fence := _DEEP_FENCE.search(text)):  # CommonMark has no fence at four columns
        text = re.sub(rf"^{deep_fence[1]}", "", text, flags=re.MULTILINE)
        fences = [token for token in _make_parser().parse(text) if token.type == "fence"]
    return [(token, start) for token in fences]


def _build_block(token: Token, offset: int) -> FencedBlock:
    """Return the block of a fence token, whose line numbers count from line `offset`."""
    start, stop = token.map or [0, 0]
    return FencedBlock(_read_language(token.info), token.content, start + offset, stop + offset)


def _read_language(info: str) -> str:
    """Return the first word of a fence's info string in lower case: "python" for `Python x=1` and for `{.python}`."""
    words = re.split(r"[\s,:{}()\[\]]+", info.strip(" {}").lstrip("."))
    return words[0].lower()


def _is_around(block: FencedBlock, text: str) -> bool:
    """Return True if the block spans all lines of the text."""
    return block.start == 0 and block.stop >= len(_split_lines(text))


def _repair_block(
    block: FencedBlock, markup: str, lines: list[str], is_complete: Callable[[str], bool]
) -> FencedBlock | None:
    """Return the block with another end, or None if no end is better.

    Tries each later fence as the end. The best end makes the content complete; the second best is the next opening
    fence.
    """
    tried_ends = 0
    shorter_block: FencedBlock | None = None
    for number in range(block.start + 1, len(lines)):
        column = lines[number].find(markup)
        if column < 0:
            continue
        tried_ends += 1
        if tried_ends > MAX_ENDS:
            break
        text_before, text_after = lines[number][:column], lines[number][column:].strip(markup[0] + " \t")
        is_opening = not text_before.strip(" \t>") and bool(text_after) and "`" not in text_after
        content = textwrap.dedent("\n".join([*lines[block.start + 1 : number], *([] if is_opening else [text_before])]))
        repaired = FencedBlock(block.language, content, block.start, number if is_opening else number + 1)
        if is_complete(content):
            return repaired
        if is_opening and shorter_block is None and number < block.stop:
            shorter_block = repaired
    return shorter_block


def _is_program(block: FencedBlock) -> bool:
    """Return True if a block does something: not a lone value (sample output), a comment or a prompt session."""
    tree = parse_python(block.content)
    if tree is None:
        return block.is_python and not block.content.lstrip().startswith((">>> ", "$ "))
    return any(
        not isinstance(node, ast.Expr) or any(isinstance(descendant, ast.Call) for descendant in ast.walk(node))
        for node in tree.body
    )


def _join_parts(parts: list[str]) -> str:
    """Return the last program, preceded by earlier ones that define names it needs."""
    program = parts[-1]
    for earlier_part in reversed(parts[:-1]):
        if _find_free_names(program) & _find_defined_names(earlier_part):
            program = f"{earlier_part.rstrip()}\n{program}"
    return program


def _find_free_names(text: str) -> set[str]:
    """Return the names that a program reads but neither binds nor finds among Python's builtins."""
    tree = parse_python(text)
    if tree is None:
        return set()
    read_names: set[str] = set()
    bound_names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read_names if isinstance(node.ctx, ast.Load) else bound_names).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound_names.add(node.name)
        elif isinstance(node, ast.arg):
            bound_names.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound_names |= {(name.asname or name.name).split(".")[0] for name in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound_names.add(node.name)
    return read_names - bound_names - _BUILTIN_NAMES


def _find_defined_names(text: str) -> set[str]:
    """Return the names bound at the top level of a program, or an empty set for invalid Python."""
    tree = parse_python(text)
    defined_names: set[str] = set()
    for node in tree.body if tree is not None else []:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined_names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined_names |= {(name.asname or name.name).split(".")[0] for name in node.names}
        else:
            defined_names |= {
                name_node.id
                for name_node in ast.walk(node)
                if isinstance(name_node, ast.Name) and isinstance(name_node.ctx, ast.Store)
            }
    return defined_names
