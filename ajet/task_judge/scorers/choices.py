"""Scorer `multiple_choice`: finds the choice named by an answer.

Invariant: an answer that names no choice, or several, is wrong. A choice is named by its letter or text. All letters
follow the same rules, also A and I, which are words: a capital letter in running text names a choice only if the
surrounding words support that.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.task_judge.extraction import answer_text
from ajet.task_judge.scorers.text import contains, fold_text

LETTERS = "ABCDEFGHIJ"
"""Labels of rows without listed choices."""
LONGEST = 10_000
"""Characters at the end of an answer that are read."""
_MARKS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|boxed)\s*\{([^{}]*)\}|\*\*|[*`$\"“”«»「」『』]|</?[a-z]+>")
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3002: ".", 0x3001: ",", 0xFF61: "."}
_I = re.IGNORECASE
_CORRECTION = re.compile(
    r"\b(?:no|wait|actually|correction|sorry|rather|instead|scratch that|on second thought|i mean|nein|non|perd[oó]n)\b"
    r"|不对|不對|更正|等等|不，",
    _I,
)
_NEGATION = (
    r"(?:\b(?:not|never|cannot|neither|nor|(?:is|are|was|ca|wo|do|would)n['’]?t|nicht|keine?|pas|não|nao|no(?!\s*[,.:;!])|nunca|rather"
    r" than|instead of|unlike|nie|не|except(?: for)?|excluding|apart from|other than|all but)\b"
    r"|除了|不是|并非|並非|(?:不[应應能可该該]?|[别別])[选選][择擇]?|不能)"
)
_FILLER = (
    r"(?:[\s:,(\[{'’—–-]|\b(?:option|choice|answer|letter|number|clearly|definitely|probably|likely|most|certainly|"
    r"simply|therefore|thus|then|so|either|both|maybe|perhaps|opci[oó]n|opção|antwort|buchstabe|la|el|le|die|der|the|"
    r"los?|i think|i believe|i guess|i would say|i['’]d say|it is|it['’]s|in my opinion|indeed)\b|选项|選項|是)*"
)
_ANNOUNCED = re.compile(
    r"(?:(?:\b(?:answers?|respuesta|r[ée]ponse|antwort|lösung|risposta|resposta|odpowied[źz]|cevap|jawaban(?:nya)?|svar|"
    r"vastaus|antwoord|ответ|відповідь|"
    r"(?:correct|right|best|final|my) (?:choice|option|solution|one))\b|答案|选项|選項|"
    r"正解|答え|答|정답|답|الإجابة|الجواب|उत्तर|คำตอบ)(?:(?P<gap>[^\n.?!;]{0,80}?)(?:\b(?:is|are|was|be|es|est|ist|è|é|jest|"
    r"adalah|är|on|это)\b|['’]s\b|[:=→⇒–—-]|->|是|为|為|选|選|は|은|는|هي|هو|है|คือ)|(?=\s*[(\[]|\s+[A-Z0-9]\b))"
    r"|\b(?:choose|chose|choosing|pick|picked|select|selected|go(?:ing)? with|opt for|vote for|settle on|guess|prefer|"
    rf"elijo|escolho|choisis|wähle|nehme|scelgo|выбираю)\b|(?<![不别別])(?<!不[应應能可该該])(?:选择|選擇|应选|故选|选|選)){_FILLER}",
    _I,
)
_NEGATED_GAP = re.compile(rf"{_NEGATION}|[不非]$", _I)
_NOT = re.compile(_NEGATION + _FILLER, _I)
_BUT = re.compile(rf"\W*(?:\b(?:but|sondern|sino|mais|rather)\b|而是|,)+{_FILLER}", _I)
_DENIED = re.compile(rf"{_NEGATION}(?:\s+(?:choose|pick|select|say|be|es|est|ist|[èé]))?{_FILLER}\W?$", _I)
_DENIED_PART = re.compile(
    rf"{_NEGATION}(?:\s+|(?<=[\u4e00-\u9fff]))(?:(?!\b(?:but|sondern|sino|mais|rather)\b|而是|就是)[^,.;\n])*", _I
)
_BE = r"[)\].:]*\s*(?:\b(?:is|are|was|must be|has to be|should be|would be|seems|looks)\b|['’]s\b)\s*"
_RIGHT = (
    rf"{_BE}(?:clearly |definitely |the |probably |my |only )*"
    r"(?:correct|right|answer|best|true|one|choice|solution|option)\b"
)
_WRONG = re.compile(
    rf"{_BE}(?:clearly |definitely |also |probably )*(?:not\b|wrong|incorrect|false)"
    r"|[)\].:]*\s*isn['’]?t|\s*(?:是?错|是?錯|不对|不對)",
    _I,
)
_BETWEEN = re.compile(
    r"[)\].:!]*\s*(?:(?:[,;/&+|、和或与與及跟•>-]|\b(?:[Oo]r|[Aa]nd|[Mm]aybe|[Pp]erhaps|possibly|also|even|[Oo]ption|[Cc]hoice|"
    r"[Aa]nswer|und|oder|y|o|u|et|ou|e|и|или|as well as)\b)\s*)*"
)
"""In small letters, since E, O, U and Y may be labels."""
_QUESTION_MARK = re.compile(r"[)\].]?\s*\?")
_REASON = re.compile(r"\s+(?:because|since|as|for|due|weil|porque|parce|car|denn)\b", _I)


def multiple_choice(model_answer: str, ground_truth: Any, metadata: dict[str, Any]) -> Verdict:
    """Return a verdict with reward 1 if the answer names the right choice, else 0.

    Args:
        model_answer: The answer; it names a choice by its label or text.
        ground_truth: The right choice: its letter, its text, or its number from 0.
        metadata: The row. Its `choices` or `options` are a list, a mapping of letters to texts, or {"label": […],
            "text": […]}. Without them, the letters A to J are choices.

    Raises:
        JudgeFailure: the ground truth is none of the choices.
    """
    choices = _read_choices(metadata)
    correct = _correct_label(ground_truth, choices)
    label = find_named_choice(model_answer, choices)
    if label is None:
        return Verdict(0.0, False, "the answer names none of the choices, or several")
    return Verdict(float(label == correct), label == correct, f"the answer is {label}, but {correct} is right")


def find_named_choice(answer: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the one choice that an answer names. None: no choice, or several."""
    text = _MARKS.sub(lambda mark: mark[1] or "", answer[-LONGEST:].translate(_WIDE)).strip().lstrip("_")
    labels = tuple(choices) or tuple(LETTERS)
    reader = _make_reader(labels)
    if (label_only := reader.alone.fullmatch(text)) is not None:
        return reader.label(label_only[1])
    if (label := _find_by_text(text, choices)) is not None:
        return label
    for named_labels in (reader.find_announced(text), reader.find_mentioned(text)):
        # A label whose following text is another choice's counts as None: the answer is ambiguous.
        labels_named = {
            named_label.label if _agrees_with_text(named_label, text, choices) else None for named_label in named_labels
        }
        if labels_named:
            return next(iter(labels_named)) if len(labels_named) == 1 else None
    return _find_mentioned_text(text, choices)


@dataclass(frozen=True, slots=True)
class NamedLabel:
    """A position in a text that names a choice's label. `label` is None if it names several."""

    label: str | None
    start: int
    stop: int


class OptionMarks:
    """Labels that head an option in a text: `A) x`, `(B) y`, `C. z`."""

    def __init__(self, labels: Iterable[NamedLabel]) -> None:
        """Index the labels, which are in the order of the text."""
        marks = list(labels)
        self._mark_starts = [mark.start for mark in marks]
        self._labels = [mark.label for mark in marks]
        # For each mark, the index of the next mark with another label.
        self._next_change = list(range(1, len(marks) + 1))
        for index in reversed(range(len(marks) - 1)):
            if self._labels[index] == self._labels[index + 1]:
                self._next_change[index] = self._next_change[index + 1]

    def has_other(self, label: str, start: int, stop: int) -> bool:
        """Return True if a label other than `label` heads an option between two offsets of the text."""
        index = bisect_left(self._mark_starts, start)
        if index < len(self._mark_starts) and self._labels[index] == label:
            index = self._next_change[index]
        return index < len(self._mark_starts) and self._mark_starts[index] < stop


class LabelReader:
    """Finds where a text names the labels of choices."""

    def __init__(self, labels: Iterable[str]) -> None:
        """Compile the patterns for a row's labels.

        Args:
            labels: The labels in the row's spelling, such as A to D.
        """
        self._labels = {label.upper(): label for label in labels}
        capital = "|".join(map(re.escape, self._labels))
        either = "|".join(map(re.escape, [*self._labels, *(label.lower() for label in self._labels)]))
        # A label is no part of a word, an abbreviation or a TeX command.
        start = r"(?<![A-Za-z0-9_À-ɏ'’\\.])"
        stop = r"(?![A-Za-z0-9_À-ɏ]|['’][A-Za-z])"
        bare = rf"{start}({capital}){stop}"
        marked = rf"(?<![A-Za-z0-9])[(\[{{]\s*({either})\s*[)\]}}]|{start}({either})\s?\)"
        self.alone = re.compile(rf"[\s(\[{{'’<_]*({either})[\s)\]}}>'’.:,;!_]*")
        self._label_pattern = re.compile(rf"{marked}|{bare}")
        self._final_pattern = re.compile(rf"{marked}|{bare}|{start}({either})(?=\s*[.,;:!)\n]|\s*$)(?!\.\w)")
        self._marked_pattern = re.compile(rf"{marked}|{start}({capital})(?=[.:](?:\s|$)|\s+[-–—]\s)")
        self._prose_pattern = re.compile(rf"\s+(?!(?:{capital}){stop})[^\W\d_]|\s+(?:{capital}){stop}\s+[a-z]")
        self._is_right_pattern = re.compile(rf"{bare}\)?(?={_RIGHT})", re.ASCII)

    def find_announced(self, text: str) -> list[NamedLabel]:
        """Return labels after "the answer is …" or "I choose …", or before "… is correct", in order of the text.

        Only labels after the last correction ("no, wait") count.
        """
        marks = OptionMarks(
            self._build_label(match)
            for match in self._marked_pattern.finditer(text)
            if not _denied_before(text, match.start()) and not _WRONG.match(text, match.end())
        )
        announced: list[NamedLabel] = []
        for match in _ANNOUNCED.finditer(text):
            if not _NEGATED_GAP.search(match["gap"] or "") and not _denied_before(text, match.start()):
                announced += self._read_at(text, match.end(), marks)
        for match in self._is_right_pattern.finditer(text):
            if not _denied_before(text, match.start()):
                announced.append(self._build_label(match))
        return _drop_corrected(text, sorted(announced, key=lambda label: label.start))

    def find_mentioned(self, text: str) -> list[NamedLabel]:
        """Return mentioned labels, except denied or questioned ones, and capital letters that are words ("A", "I")."""
        mentioned = []
        for match in self._label_pattern.finditer(text):
            end = match.end()
            is_denied = _denied_before(text, match.start()) or _WRONG.match(text, end)
            is_question = _QUESTION_MARK.match(text, end)
            is_bare = match[3] is not None  # without brackets, so "A" may be the article
            if not is_denied and not is_question and not (is_bare and self._is_word(text, end)):
                mentioned.append(self._build_label(match))
        return _drop_corrected(text, mentioned)

    def _read_at(self, text: str, offset: int, marks: OptionMarks) -> list[NamedLabel]:
        """Return the label named at an offset of the text, or [] if there is none or it is denied ("not B").

        The label is None if several are named, such as in "A or B" or a list of options.
        """
        if (denial := _NOT.match(text, offset)) is not None:  # "not A, but B" names B
            denied_label = self._final_pattern.match(text, denial.end())
            contrast = _BUT.match(text, denied_label.end()) if denied_label else None
            if contrast is None:
                return []
            offset = contrast.end()
        match = self._final_pattern.match(text, offset)
        if match is None or _QUESTION_MARK.match(text, match.end()) or _WRONG.match(text, match.end()):
            return []
        label: str | None = self._matched_label(match)
        is_line_start = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip(" (")
        # A label at the start of a line may head a list of options, which reaches to the next empty line.
        line_end = text.find("\n\n" if is_line_start else "\n", match.end())
        is_listed = self._is_listed(text, match.end(), label)
        if is_listed or marks.has_other(
            self._matched_label(match), match.end(), line_end if line_end >= 0 else len(text)
        ):
            label = None
        return [NamedLabel(label, match.start(), match.end())]

    def _is_listed(self, text: str, offset: int, label: str | None = None) -> bool:
        """Return True if the text at an offset goes on with another label, as in "A, B" or "A or B".

        Args:
            label: The label before the offset; its repetition does not count.
        """
        between = _BETWEEN.match(text, offset)
        next_label = self._label_pattern.match(text, between.end() if between else offset)
        if between is None or next_label is None or self._matched_label(next_label) == label:
            return False
        is_joined = re.search(r"[^\W\d_]|[,;/&+|]", between[0]) is not None  # by a comma or a word such as "or"
        if is_joined:
            return True
        # Only blanks or brackets lie between: "A) B) C)" is a list, but "A  I think" and "A) B) is wrong" are not.
        after_label = next_label.end()
        return not (self._prose_pattern.match(text, after_label) or _WRONG.match(text, after_label))

    def _is_word(self, text: str, offset: int) -> bool:
        """Return True if a capital letter before the offset may be an article or pronoun, since a word follows."""
        follows = self._prose_pattern.match(text, offset) is not None and not _REASON.match(text, offset)
        return follows and not self._is_listed(text, offset)

    def _build_label(self, match: re.Match[str]) -> NamedLabel:
        """Return a pattern's match as a label in the row's spelling, with its place in the text."""
        return NamedLabel(self._matched_label(match), match.start(), match.end())

    def _matched_label(self, match: re.Match[str]) -> str:
        """Return the label that a pattern's match names; its group is the only one with text."""
        return self.label(next(text for text in match.groups() if text))

    def label(self, text: str) -> str:
        """Return the label that a text names in any case, in the row's spelling."""
        return self._labels[text.upper()]


@lru_cache(maxsize=64)
def _make_reader(labels: tuple[str, ...]) -> LabelReader:
    """Return the reader for these labels; its patterns are compiled once per set of labels."""
    return LabelReader(labels)


def _drop_corrected(text: str, labels: list[NamedLabel]) -> list[NamedLabel]:
    """Return the labels after the last correction, such as "no, wait", between two labels."""
    remaining: list[NamedLabel] = []
    for label in labels:
        if remaining and _CORRECTION.search(text, remaining[-1].stop, label.start):
            remaining.clear()
        remaining.append(label)
    return remaining


def _denied_before(text: str, offset: int) -> bool:
    """Return True if a negation such as "not" or "except" ends directly before an offset of the text."""
    # A window of 40 characters bounds the time of the search.
    return _DENIED.search(text, max(0, offset - 40), offset) is not None


def _agrees_with_text(named: NamedLabel, text: str, choices: Mapping[str, str]) -> bool:
    """Return False if another choice's text follows the label, or precedes a label in brackets: `London (B)`."""
    if named.label is None:
        return False
    # The longest adjacent text counts, since one choice's text may begin with another's.
    after = fold_text(text[named.stop : named.stop + 400].lstrip(" \t\n):.-–—,"))
    before = fold_text(text[max(named.start - 400, 0) : named.start]) if text[named.start] in "([" else ""
    texts = {label: fold_text(choice).rstrip(".") for label, choice in choices.items()}
    adjacent = [(len(choice), label) for label, choice in texts.items()
              if choice and (_has_prefix(after, choice) or _has_prefix(before[::-1], choice[::-1]))]  # fmt: skip
    return not adjacent or texts[named.label] == texts[max(adjacent)[1]]


def _has_prefix(words: str, text: str) -> bool:
    """Return True if `words` begins with `text`, and the text ends at a word's end."""
    return words.startswith(text) and not words[len(text) : len(text) + 1].isalnum()


def _find_mentioned_text(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the only choice whose text appears in the answer without being denied, else None.

    A choice whose text is part of another mentioned choice's text does not count.
    """
    affirmed = fold_text(_DENIED_PART.sub(" ", text))
    mentioned = {
        label: fold_text(choice_text).rstrip(".") for label, choice_text in choices.items() if choice_text.strip()
    }
    mentioned = {
        label: choice_text
        for label, choice_text in mentioned.items()
        if choice_text and contains(affirmed, choice_text)[1]
    }
    longest = [
        label
        for label, choice_text in mentioned.items()
        if not any(
            choice_text != other_text and contains(other_text, choice_text)[1] for other_text in mentioned.values()
        )
    ]
    return longest[0] if len(longest) == 1 else None


def _find_by_text(text: str, choices: Mapping[str, str]) -> str | None:
    """Return the label of the only choice whose text is the complete answer, apart from case and white space."""
    folded = fold_text(text).rstrip(".!")
    labels = [label for label, choice in choices.items() if folded and fold_text(choice).rstrip(".!") == folded]
    return labels[0] if len(labels) == 1 else None


def _read_choices(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the row's choices as texts by label: A, B, … for a list; {} without choices."""
    choices = metadata.get("choices", metadata.get("options"))
    if isinstance(choices, Mapping) and isinstance(choices.get("text"), list):
        labels = choices.get("label") or string.ascii_uppercase
        return {str(label).upper(): answer_text(text) for label, text in zip(labels, choices["text"], strict=False)}
    if isinstance(choices, Mapping):
        return {str(label).upper(): answer_text(text) for label, text in choices.items()}
    if isinstance(choices, (list, tuple)):
        return {letter: answer_text(text) for letter, text in zip(string.ascii_uppercase, choices, strict=False)}
    return {}


def _correct_label(truth: Any, choices: Mapping[str, str]) -> str:
    """Return the label of the right choice from its number (from 0), text or letter.

    Raises:
        JudgeFailure: the row's answer is none of its choices.
    """
    labels = [*choices] or [*LETTERS]
    if isinstance(truth, int) and not isinstance(truth, bool) and 0 <= truth < len(labels):
        return labels[truth]
    text = answer_text(truth).strip()
    # A letter in brackets or with a dot, such as "(b)", is a label.
    label = _find_by_text(text, choices) or (text.strip("().: ").upper() if len(text.strip("().: ")) == 1 else None)
    if label is not None and label in labels:
        return label
    raise JudgeFailure(f"the row's answer {text[:80]!r} is not one of its choices {', '.join(labels)}")
