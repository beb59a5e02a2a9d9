"""Template doctor: what a chat template does to an agent's turns, and what that costs.

Invariant: every verdict is a rehearsed turn's (`rehearsal`), none is told from a model's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.schema.finding import Finding, State
from ajet.tokens.rehearsal import TOOL, Outcome, Rehearsal, call, result
from ajet.tokens.renderer import Renderer
from ajet.tokens.template import Message, TemplateRefused

TURNS = 8
"""Replies of each episode that costs are told for."""

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
_KEEP = "set context_tracker.keep_thinking: true, which goes on from what was sampled where only thinking differs"
_MEND = "put a chat_template.jinja beside the tokenizer that renders earlier turns as it did when they were new"

_STATES: dict[Outcome, State] = {"extends": "ok", "forks": "warning", "refused": "note", "misread": "problem"}


def examine(renderer: Renderer) -> list[Finding]:
    """All checks of one tokenizer's chat template. Quick: no model, some dozens of renderings."""
    try:
        renderer.render([_ASK])
    except TemplateRefused as refusal:
        return [Finding("template", "problem", f"It refuses a single user message: {refusal}", _MEND)]
    if not renderer.end_ids:
        text = "No token ends a reply: every reply would run to its length limit."
        return [Finding("stop tokens", "problem", text, "set eos_token in tokenizer_config.json")]
    found = [_ends(renderer), _text(renderer), *_date(renderer), *_check_system(renderer), *_turns(renderer)]
    return [*found, *_tools(renderer), *_episodes(renderer)]


def _ends(renderer: Renderer) -> Finding:
    names = [renderer.decode([token]) for token in renderer.end_ids]
    return Finding("stop tokens", "ok", " ".join(names))


def _text(renderer: Renderer) -> Finding:
    prompt = renderer.render([_ASK, _ANSWER, _MORE])
    lost = [text for text in (prompt.shown, *_TEXTS) if renderer.decode(renderer.encode(text)) != text]
    if lost:
        what = f"Text does not come back from its ids: {lost[0][:60]!r} becomes {_back(renderer, lost[0])[:60]!r}."
        return Finding("text and ids", "problem", what, "use the model's fast tokenizer (tokenizer.json)")
    return Finding("text and ids", "ok", "Text comes back from its ids, character for character.")


def _back(renderer: Renderer, text: str) -> str:
    return renderer.decode(renderer.encode(text))


def _date(renderer: Renderer) -> list[Finding]:
    if not renderer.template.dated:
        return []
    text = "The template writes today's date into the prompt; an episode keeps the day it began on."
    return [Finding("date", "note", text)]


def _check_system(renderer: Renderer) -> list[Finding]:
    if renderer.template.takes_system:
        return []
    text = "The template takes no system message: requests with one are refused, tools open the first user message."
    return [Finding("system message", "warning", text, "put instructions into the first user message")]


def _opening(renderer: Renderer) -> list[Message]:
    """The messages that open each rehearsed conversation."""
    return [_SYSTEM, _ASK] if renderer.template.takes_system else [_ASK]


def _turns(renderer: Renderer) -> list[Finding]:
    thoughtful = {**_ANSWER, **_thought(renderer)}
    cut = _play(renderer, thoughtful, _MORE, cut=True)
    length = _verdict("length", cut, "a question after a reply that its length limit cut")
    if not thinks(renderer):
        answers = _verdict("answers", _play(renderer, _ANSWER, _MORE), "a question after an answer")
        return [answers, length, Finding("thinking", "ok", "The model has no thinking that a template could strip.")]
    bare = _verdict("no thinking", _play(renderer, _ANSWER, _MORE), "a question after an answer without a thought")
    outcome = _play(renderer, thoughtful, _MORE)
    if outcome == "forks":
        do = "" if renderer.template.style == "harmony" else _KEEP
        text = "Thinking is stripped once the next question comes: that turn forks."
        return [Finding("thinking", "warning", text, do), bare, length]
    return [_verdict("thinking", outcome, "a question after a thought and an answer"), bare, length]


def _thought(renderer: Renderer) -> Message:
    return {"reasoning_content": _THOUGHT} if thinks(renderer) else {}


def thinks(renderer: Renderer) -> bool:
    """Whether replies have reasoning apart from their content."""
    return renderer.thinks or renderer.template.style == "harmony"


def _tools(renderer: Renderer) -> list[Finding]:
    if not renderer.reads_tool_calls:
        text = "How this model writes tool calls is not known to ajet: requests with tools are refused."
        do = "give the tokenizer a response_schema, or keep tools out of the request (the agent parses calls itself)"
        return [Finding("tools", "warning", text, do)]
    native = (
        "The template knows tools" if renderer.template.knows_tools else "The template knows no tools: ajet adds them"
    )
    found = [Finding("tools", "ok", f"{native}; calls are written the {renderer.template.style} way.")]
    one, other = call("skiff", 1), call("dinghy", 2, 1)
    calling: Message = {"role": "assistant", "content": None, "tool_calls": [one], **_thought(renderer)}
    results = (result(one, "a small boat"), result(other, "a smaller boat"))
    found.append(_verdict("tool call", _play(renderer, calling, results[0]), "a result after a call"))
    again = _play(renderer, calling, results[0], respell=True)
    found.append(_verdict("call spelled anew", again, "a result after a call spelled the model's own way"))
    outcome = _play(renderer, {**calling, "tool_calls": [one, other]}, *results)
    if outcome in ("refused", "misread"):
        found.append(Finding("several calls", "note", "One reply holds one call: the template shows no more."))
    else:
        found.append(_verdict("several calls", outcome, "two adjacent results after two calls"))
    later = Rehearsal(renderer, _opening(renderer), [TOOL])
    if later.play(calling, results[0]) in ("extends", "forks"):
        found.append(
            _verdict(
                "answer after a result",
                later.play({**_ANSWER, **_thought(renderer)}, _MORE),
                "a question after that answer",
            )
        )
    return found


def _play(renderer: Renderer, reply: Message, *then: Message, cut: bool = False, respell: bool = False) -> Outcome:
    tools = [TOOL] if reply.get("tool_calls") else None
    return Rehearsal(renderer, _opening(renderer), tools).play(reply, *then, cut=cut, respell=respell)


def _verdict(topic: str, outcome: Outcome, turn: str) -> Finding:
    state = _STATES[outcome]
    return Finding(topic, state, _said(outcome, turn), _MEND if state in ("warning", "problem") else "")


def _said(outcome: Outcome, turn: str) -> str:
    told = {
        "extends": "extends what was sampled.",
        "forks": "forks, the template renders the earlier turns otherwise by then.",
        "refused": "the template refuses it.",
        "misread": "the reply, as the template spells it, is not read back as it was meant.",
    }
    return f"{turn[0].upper()}{turn[1:]}: {told[outcome]}"


def _episodes(renderer: Renderer) -> list[Finding]:
    thought = _thought(renderer)
    talk = Rehearsal(renderer, _opening(renderer))
    played = [
        talk.play({**_ANSWER, **thought}, {"role": "user", "content": f"{_MORE['content']} ({turn})"})
        for turn in range(TURNS)
    ]
    found = [_cost(f"{TURNS} answers", talk, played)]
    if renderer.reads_tool_calls:
        work, played = Rehearsal(renderer, _opening(renderer), [TOOL]), []
        for turn in range(TURNS):
            made = call("skiff", turn)
            reply = {"role": "assistant", "content": None, "tool_calls": [made], **thought}
            played.append(work.play(reply, result(made, f"a small boat, page {turn}")))
        found.append(_cost(f"{TURNS} tool calls", work, played))
    return found


def _cost(what: str, played: Rehearsal, outcomes: Sequence[Outcome]) -> Finding:
    topic = f"episode of {what}"
    if len(played.lengths) == 0 or played.replies < len(outcomes):
        bad: Outcome = "refused" if "refused" in outcomes else "misread"
        return Finding(topic, _STATES[bad], _said(bad, f"turn {played.replies + 1}"))
    if not played.forks:
        return Finding(topic, "ok", "No fork: one sequence to train on.")
    text = (
        f"{played.forks} of {played.replies} turns fork: {len(played.lengths)} sequences to train on, "
        f"{played.cost:.1f} times the tokens, and prompts that are read anew."
    )
    return Finding(topic, "warning", text)


def sizes(tokenizer: Any, config: Mapping[str, Any], rows: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Vocabulary against embeddings. `config` is config.json; `rows` the shapes of embedding and head, where known."""
    known, told = len(tokenizer), (config.get("text_config") or config).get("vocab_size")
    shapes = {name: shape[0] for name, shape in rows.items() if shape}
    least = min([*shapes.values(), *([told] if isinstance(told, int) else [])], default=None)
    listed = ", ".join(f"{name} {count}" for name, count in shapes.items())
    listed = f" ({listed})" if listed else ""
    if least is None:
        return [Finding("vocabulary", "note", f"{known} tokens; the config names no vocab_size.")]
    if known > least:
        text = f"The tokenizer has {known} tokens, the model only {least}{listed}: ids beyond it cannot be embedded."
        return [Finding("vocabulary", "problem", text, "use the model's own tokenizer, or resize its embeddings")]
    if len(set(shapes.values())) > 1:
        return [Finding("vocabulary", "problem", f"Embedding and head differ in size{listed}.", "check the weights")]
    spare = f", {least - known} of them spare" if least > known else ""
    return [Finding("vocabulary", "ok", f"{known} tokens, {least} rows{spare}{listed}.")]
