"""Template doctor: the effect of a chat template on an agent's turns, and its cost.

Invariant: every finding comes from turns rendered without a model (`TemplateRehearsal`), never from a model's name. The
turns use the functions of runs (render, parse, extend) on replies written by the chat template itself: a fork here is a
fork in a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ajet.schema.call import Ids
from ajet.schema.errors import Finding, State
from ajet.tokens.content_format import Message
from ajet.tokens.end_tokens import MARK
from ajet.tokens.renderer import Rendered, Renderer
from ajet.tokens.template import TemplateRefused

TURNS = 8
"""Number of replies in the episodes whose cost is computed."""

_SYSTEM: Message = {"role": "system", "content": "You are a careful assistant."}
_ASK: Message = {"role": "user", "content": "What does the word mean?"}
_MORE: Message = {"role": "user", "content": "And where does it come from?"}
_ANSWER: Message = {"role": "assistant", "content": "It means a small boat."}
_THOUGHT = "The person asks about a word. I know this one."
_TEXTS = (
    "Two  spaces, a tab\tand\n\na blank line.",
    "naïve café 深度学习 π ≤ 🙂",
    ' {"a": [1, "\\u00e9"]} ',
    "<b>&amp;</b>",
)
_KEEP = (
    "set context_tracker.keep_thinking: true, which continues from the sampled tokens where only the thinking differs"
)
_MEND = "put a chat_template.jinja into the tokenizer's folder that renders earlier turns as it did when they were new"

_STATES: dict[Outcome, State] = {"extends": "ok", "forks": "warning", "refused": "note", "misread": "problem"}


def examine(renderer: Renderer) -> list[Finding]:
    """Check a tokenizer's chat template. The check takes some dozens of renderings, without a model."""
    try:
        renderer.render([_ASK])
    except TemplateRefused as refusal:
        return [Finding("template", "problem", f"The template refuses a single user message: {refusal}", _MEND)]
    if not renderer.end_ids:
        text = "No token ends a reply, so every reply would run to its length limit."
        return [Finding("stop tokens", "problem", text, "set eos_token in tokenizer_config.json")]
    findings = [
        _check_end_tokens(renderer),
        _check_round_trip(renderer),
        *_check_date(renderer),
        *_check_system(renderer),
        *_check_turns(renderer),
    ]
    return [*findings, *_check_tools(renderer), *_check_episodes(renderer)]


def _check_end_tokens(renderer: Renderer) -> Finding:
    """Return a finding that lists the tokens that end a reply."""
    names = [renderer.decode([token]) for token in renderer.end_ids]
    return Finding("stop tokens", "ok", " ".join(names))


def _check_round_trip(renderer: Renderer) -> Finding:
    """Check that decoding ids returns the encoded text: of a rendered prompt, and of texts that are often changed."""
    prompt = renderer.render([_ASK, _ANSWER, _MORE])
    changed_texts = [text for text in (prompt.shown, *_TEXTS) if renderer.decode(renderer.encode(text)) != text]
    if changed_texts:
        problem = (
            f"Decoding token ids does not return the text: {changed_texts[0][:60]!r} becomes "
            f"{_round_trip(renderer, changed_texts[0])[:60]!r}."
        )
        return Finding("text and ids", "problem", problem, "use the model's fast tokenizer (tokenizer.json)")
    return Finding("text and ids", "ok", "Decoding token ids returns the text, character for character.")


def _round_trip(renderer: Renderer, text: str) -> str:
    return renderer.decode(renderer.encode(text))


def _check_date(renderer: Renderer) -> list[Finding]:
    """Return a note if the template writes today's date, otherwise no finding."""
    if not renderer.template.dated:
        return []
    text = "The template writes today's date into the prompt; an episode keeps the date of its first call."
    return [Finding("date", "note", text)]


def _check_system(renderer: Renderer) -> list[Finding]:
    """Return a warning if the template supports no system message, otherwise no finding."""
    if renderer.template.takes_system:
        return []
    text = (
        "The template supports no system message: requests with one are refused, and tools are described in the "
        "first user message."
    )
    return [Finding("system message", "warning", text, "put instructions into the first user message")]


def _list_opening(renderer: Renderer) -> list[Message]:
    """Return the first messages of each conversation."""
    return [_SYSTEM, _ASK] if renderer.template.takes_system else [_ASK]


def _check_turns(renderer: Renderer) -> list[Finding]:
    """Play a question after a reply that is cut, has thinking or has none. Return a finding for each."""
    thoughtful = {**_ANSWER, **_build_thought(renderer)}
    cut_outcome = _play_turn(renderer, thoughtful, _MORE, cut=True)
    length = _judge_outcome("length", cut_outcome, "a question after a reply that its length limit cut")
    if not thinks(renderer):
        answers = _judge_outcome("answers", _play_turn(renderer, _ANSWER, _MORE), "a question after an answer")
        return [answers, length, Finding("thinking", "ok", "The model has no thinking that a template could strip.")]
    bare = _judge_outcome(
        "no thinking", _play_turn(renderer, _ANSWER, _MORE), "a question after an answer without a thought"
    )
    outcome = _play_turn(renderer, thoughtful, _MORE)
    if outcome == "forks":
        do = "" if renderer.template.style == "harmony" else _KEEP
        text = (
            "The template removes thinking once the next question comes, so that turn does not extend the turn before."
        )
        return [Finding("thinking", "warning", text, do), bare, length]
    return [_judge_outcome("thinking", outcome, "a question after a thought and an answer"), bare, length]


def _build_thought(renderer: Renderer) -> Message:
    """Return the thinking of a sample reply as a part of its message, or {} if the model does not think."""
    return {"reasoning_content": _THOUGHT} if thinks(renderer) else {}


def thinks(renderer: Renderer) -> bool:
    """Return True if replies have reasoning besides their content."""
    return renderer.thinks or renderer.template.style == "harmony"


def _check_tools(renderer: Renderer) -> list[Finding]:
    """Play turns with tool calls: one call, a call in another spelling, two calls, an answer after a result.

    Return a finding for each turn, or a single one if ajet cannot read this model's calls.
    """
    if not renderer.reads_tool_calls:
        text = "ajet does not know how this model writes tool calls: requests with tools are refused."
        do = "give the tokenizer a response_schema, or send no tools (the agent then parses calls itself)"
        return [Finding("tools", "warning", text, do)]
    tool_support = (
        "The template supports tools"
        if renderer.template.knows_tools
        else "The template does not support tools: ajet describes them in the prompt"
    )
    findings = [
        Finding("tools", "ok", f"{tool_support}; the model writes calls in the form {renderer.template.style}.")
    ]
    first_call, second_call = call("skiff", 1), call("dinghy", 2, 1)
    call_reply: Message = {"role": "assistant", "content": None, "tool_calls": [first_call], **_build_thought(renderer)}
    results = (result(first_call, "a small boat"), result(second_call, "a smaller boat"))
    findings.append(_judge_outcome("tool call", _play_turn(renderer, call_reply, results[0]), "a result after a call"))
    respelled = _play_turn(renderer, call_reply, results[0], respell=True)
    findings.append(
        _judge_outcome("a rewritten call", respelled, "a result after a call that the model wrote in another spelling")
    )
    outcome = _play_turn(renderer, {**call_reply, "tool_calls": [first_call, second_call]}, *results)
    if outcome in ("refused", "misread"):
        findings.append(
            Finding("several calls", "note", "A reply can contain one call only: the template shows no more.")
        )
    else:
        findings.append(_judge_outcome("several calls", outcome, "two adjacent results after two calls"))
    rehearsal = TemplateRehearsal(renderer, _list_opening(renderer), [TOOL])
    if rehearsal.play(call_reply, results[0]) in ("extends", "forks"):
        findings.append(
            _judge_outcome(
                "answer after a result",
                rehearsal.play({**_ANSWER, **_build_thought(renderer)}, _MORE),
                "a question after that answer",
            )
        )
    return findings


def _play_turn(renderer: Renderer, reply: Message, *then: Message, cut: bool = False, respell: bool = False) -> Outcome:
    """Play one reply and the messages after it in a new conversation, and return the outcome.

    Args:
        cut: True if the length limit cut the reply's end token.
        respell: True if the model spells the call's arguments otherwise than the template.
    """
    tools = [TOOL] if reply.get("tool_calls") else None
    return TemplateRehearsal(renderer, _list_opening(renderer), tools).play(reply, *then, cut=cut, respell=respell)


def _judge_outcome(topic: str, outcome: Outcome, turn: str) -> Finding:
    """Return the finding for the outcome of a played turn.

    Args:
        topic: The finding's topic.
        turn: The turn in words.
    """
    state = _STATES[outcome]
    return Finding(topic, state, _describe_outcome(outcome, turn), _MEND if state in ("warning", "problem") else "")


def _describe_outcome(outcome: Outcome, turn: str) -> str:
    """Return a sentence that says how the next prompt relates to the sampled tokens of a turn."""
    descriptions = {
        "extends": "extends the sampled tokens.",
        "forks": (
            "does not extend the sampled tokens, because the template renders the earlier turns differently by then."
        ),
        "refused": "is refused by the template.",
        "misread": "cannot be read back as intended from the template's text.",
    }
    return f"{turn[0].upper()}{turn[1:]}: {descriptions[outcome]}"


def _check_episodes(renderer: Renderer) -> list[Finding]:
    """Play an episode of answers and one of tool calls, and return a finding about the cost of each."""
    thought = _build_thought(renderer)
    talk = TemplateRehearsal(renderer, _list_opening(renderer))
    outcomes = [
        talk.play({**_ANSWER, **thought}, {"role": "user", "content": f"{_MORE['content']} ({turn})"})
        for turn in range(TURNS)
    ]
    findings = [_judge_episode(f"{TURNS} answers", talk, outcomes)]
    if renderer.reads_tool_calls:
        work, outcomes = TemplateRehearsal(renderer, _list_opening(renderer), [TOOL]), []
        for turn in range(TURNS):
            tool_call = call("skiff", turn)
            reply = {"role": "assistant", "content": None, "tool_calls": [tool_call], **thought}
            outcomes.append(work.play(reply, result(tool_call, f"a small boat, page {turn}")))
        findings.append(_judge_episode(f"{TURNS} tool calls", work, outcomes))
    return findings


def _judge_episode(what: str, played: TemplateRehearsal, outcomes: Sequence[Outcome]) -> Finding:
    """Return the finding for a played episode: unplayable, without forks, or with the cost of its forks."""
    topic = f"episode of {what}"
    if len(played.lengths) == 0 or played.replies < len(outcomes):
        bad_outcome: Outcome = "refused" if "refused" in outcomes else "misread"
        return Finding(topic, _STATES[bad_outcome], _describe_outcome(bad_outcome, f"turn {played.replies + 1}"))
    if not played.forks:
        return Finding(topic, "ok", "Every turn extends the turn before: an attempt is one sequence to train on.")
    text = (
        f"{played.forks} of {played.replies} turns do not extend the turn before: {len(played.lengths)} "
        f"sequences to train on, {played.cost:.1f} times the tokens, and the prompts of these turns are "
        "tokenized anew."
    )
    return Finding(topic, "warning", text)


def sizes(tokenizer: Any, config: Mapping[str, Any], rows: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Compare the size of the vocabulary with the embeddings.

    Args:
        config: The model's config.json.
        rows: The shapes of embedding and head, if known.
    """
    token_count, configured = len(tokenizer), (config.get("text_config") or config).get("vocab_size")
    shapes = {name: shape[0] for name, shape in rows.items() if shape}
    embedding_rows = min([*shapes.values(), *([configured] if isinstance(configured, int) else [])], default=None)
    shape_list = ", ".join(f"{name} {count}" for name, count in shapes.items())
    shape_list = f" ({shape_list})" if shape_list else ""
    if embedding_rows is None:
        return [
            Finding(
                "vocabulary",
                "note",
                f"The tokenizer has {token_count} tokens; the model's configuration gives no vocab_size.",
            )
        ]
    if token_count > embedding_rows:
        text = (
            f"The tokenizer has {token_count} tokens, but the model only {embedding_rows}{shape_list}: it has no "
            "embedding for the token ids beyond."
        )
        return [Finding("vocabulary", "problem", text, "use the model's own tokenizer, or resize its embeddings")]
    if len(set(shapes.values())) > 1:
        return [
            Finding(
                "vocabulary", "problem", f"Embedding and output head differ in size{shape_list}.", "check the weights"
            )
        ]
    spare = f", {embedding_rows - token_count} of them spare" if embedding_rows > token_count else ""
    return [
        Finding(
            "vocabulary",
            "ok",
            f"The tokenizer has {token_count} tokens, the model {embedding_rows} rows{spare}{shape_list}.",
        )
    ]


Outcome = Literal["extends", "forks", "refused", "misread"]
"""`refused`: the template raises; `misread`: the reply parses to another message than it spells."""

TOOL: Message = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "The word."},
                "page": {"type": "integer", "description": "Which page of results."},
            },
            "required": ["word"],
        },
    },
}


def call(word: str, page: int, index: int = 0) -> Message:
    """Return a call of TOOL, as a client sends it back."""
    function = {"name": "look_up", "arguments": json.dumps({"word": word, "page": page}, ensure_ascii=False)}
    return {"id": f"call_{word}_{index}", "type": "function", "function": function}


def result(of: Message, text: str) -> Message:
    """Return the message with the result of call `of`."""
    return {"role": "tool", "tool_call_id": of["id"], "content": text}


def own_reply(
    renderer: Renderer,
    messages: Sequence[Message],
    reply: Message,
    follow: Message,
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    respell: bool = False,
) -> Ids:
    """Return the ids of a reply as written by the template in the last message. Raises TemplateRefused.

    Args:
        follow: The message behind the reply; the last end token before `follow` ends the reply.
        respell: Write JSON without blanks and with reversed keys, as a model might.
    """
    text = renderer.template.text
    prompt_text, full_text = text(messages, tools), text([*messages, reply], tools, prompt=False)
    if full_text.startswith(prompt_text):
        reply_text = full_text[len(prompt_text) :]
    else:  # the history is rendered in another way now: the reply follows the same opening
        opening = prompt_text.removeprefix(text(messages, tools, prompt=False))
        marked = text([*messages[:-1], {**messages[-1], "content": MARK}, reply], tools, prompt=False)
        _, separator, reply_text = marked.rpartition(MARK)[2].partition(opening) if opening else ("", "", "")
        reply_text = reply_text if separator else reply.get("content") or ""
    id_by_end_text = {renderer.decode([token]): token for token in renderer.end_ids}
    end_positions = [index for spelled_text in id_by_end_text if (index := reply_text.find(spelled_text)) >= 0]
    if end_positions:
        end_text = next(
            spelled_text for spelled_text in id_by_end_text if reply_text.startswith(spelled_text, min(end_positions))
        )
        reply_text = reply_text[: min(end_positions)]
    else:
        later_text = text([*messages, reply, follow], tools)
        follow_position = later_text.rfind(follow["content"])
        end_text = max(id_by_end_text, key=lambda spelled_text: later_text.rfind(spelled_text, 0, follow_position))
    if respell:
        for tool_call in reply.get("tool_calls") or ():
            spelled_text = tool_call["function"]["arguments"]
            compact_json = json.dumps(dict(reversed(json.loads(spelled_text).items())), separators=(",", ":"))
            reply_text = reply_text.replace(spelled_text, compact_json)
    return np.append(renderer.encode(reply_text), np.int32(id_by_end_text[end_text]))


@dataclass
class TemplateRehearsal:
    """A growing conversation, and the timelines of training on it."""

    renderer: Renderer
    messages: list[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    prompt: Rendered | None = None
    forks: int = 0
    replies: int = 0
    lengths: list[int] = field(default_factory=list)
    """Number of tokens of each timeline so far."""

    def play(
        self,
        reply: Message,
        *then: Message,
        cut: bool = False,
        respell: bool = False,
    ) -> Outcome:
        """Add a reply and the client's next messages. `cut`: the length limit cut the end token."""
        try:
            if self.prompt is None:
                self.prompt = self.renderer.render(self.messages, self.tools)
                self.lengths.append(len(self.prompt.ids))
            ids = own_reply(self.renderer, self.messages, reply, then[0], self.tools, respell=respell)
            ids = ids[:-1] if cut else ids
            parsed_reply = self.renderer.parse(ids, tools=self.tools, earlier_prompt=self.prompt)
            if not _is_same_message(parsed_reply, reply):
                return "misread"
            parsed = {**reply, **parsed_reply}
            for parsed_call, reply_call in zip(
                parsed.get("tool_calls") or (), reply.get("tool_calls") or (), strict=True
            ):
                parsed_call["id"] = reply_call["id"]
            self.messages = [*self.messages, parsed, *then]
            extended = self.renderer.extend(self.prompt, ids, "length" if cut else "stop", self.messages, self.tools)
            self.replies += 1
            self.lengths[-1] = len(self.prompt.ids) + len(ids)
            self.prompt = extended or self.renderer.render(self.messages, self.tools)
        except TemplateRefused:
            return "refused"
        if extended is None:
            self.forks += 1
            self.lengths.append(len(self.prompt.ids))
        return "extends" if extended is not None else "forks"

    @property
    def cost(self) -> float:
        """Tokens of all timelines divided by those of the longest: 1 without forks."""
        return sum(self.lengths) / max(self.lengths)


def _is_same_message(read: Message, meant: Message) -> bool:
    """Return True if a parsed reply has the content, reasoning and tool calls of the intended one."""

    def calls(message: Message) -> list[Any]:
        """Return the (name, arguments) of a message's tool calls."""
        tool_calls = message.get("tool_calls") or ()
        return [
            (tool_call["function"]["name"], json.loads(tool_call["function"]["arguments"])) for tool_call in tool_calls
        ]

    return (
        (read.get("content") or "") == (meant.get("content") or "")
        and (read.get("reasoning_content") or "") == (meant.get("reasoning_content") or "")
        and calls(read) == calls(meant)
    )
