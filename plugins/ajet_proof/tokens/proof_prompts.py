"""Prompts and replies a second time: what client, template and tokenizer say a call's ids must be.

Invariant: the session is played again from what was said, not from what it noted down: which call a request extends
is matched anew, and a prompt that extends one must begin with that call's exact ids, whoever rendered it. What an
earlier call got wrong is reported there and not again in those that build on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ajet.context_tracker.matching import Conversations, Match, matches_reasoning, message_key, restore_reply
from ajet.schema.call import Call, Ids, PromptReader, RawPrompt
from ajet.schema.errors import AjetError
from ajet_proof.tokens.proof_findings import (
    Proof,
    TokenClass,
    WrongToken,
    at_position,
    first_difference,
    prompt_size,
)

_BLOTTED = "[redacted "
"""How a record writes a secret that a message held."""

Message = dict[str, Any]
Problem = tuple[int, str, int | None, int | None]
"""Position, what is wrong, expected and found id."""


class Words(Protocol):
    """What is asked of a renderer; `ajet.tokens.Renderer` is one. Prompts are its `Rendered` values."""

    def render(self, messages: Sequence[Message], tools: Any = None) -> Any:
        """The prompt of these messages."""
        ...

    def raw(self, prompt: str | Sequence[int]) -> Any:
        """A prompt of ids as they are, or of a text begun as the tokenizer begins texts."""
        ...

    @property
    def end_ids(self) -> Sequence[int]:
        """The tokens that end a reply."""
        ...

    def encode(self, text: str) -> Ids:
        """The ids of a text that goes on from others."""
        ...

    def extend(
        self,
        before: Any,
        reply_ids: Ids,
        finish: str,
        messages: Sequence[Message],
        tools: Any = None,
        *,
        verbatim: bool,
    ) -> Any:
        """The prompt that keeps `before` and the reply's ids; None where the template forbids it."""
        ...

    def force_call(self, prompt: Any, name: str | None) -> Any:
        """`prompt` with the beginning of a tool call after it."""
        ...

    def decode(self, ids: Ids, *, after: Ids) -> str:
        """The text of ids that follow others."""
        ...

    def reply_stream(self, tools: Any = None, *, before: Any, stop: Sequence[str], single_call: bool) -> Any:
        """A parser of one reply."""
        ...


def prove_prompts(
    proof: Proof,
    calls: Sequence[Call],
    messages: Sequence[Message],
    tools: Sequence[Sequence[Message]],
    words: Words,
    episode: str,
) -> None:
    """Render, extend and parse every call again; counts and wrong tokens go into `proof`."""
    replay = _Replay(calls, messages, tools, words)
    for call in calls:
        if call.fork is not None:
            proof.forks[call.fork] += 1
        if not prompt_size(call):
            replay.pass_over(call)
            continue
        kind: TokenClass = "scaffold" if call.fork is None else "forked"
        proof.counts[kind].tokens += int(call.suffix_ids.size)
        proof.counts["sampled"].tokens += int(call.response_ids.size)
        if replay.hidden(call):
            replay.pass_over(call)
            proof.unchecked["redacted"] += int(call.suffix_ids.size + call.response_ids.size)
            continue
        if call.messages:
            _check_prompt(proof, call, replay.prompt_problem(call), kind, episode)
        elif (encoded := call.terms.raw_prompt) is not None:
            _check_prompt(proof, call, replay.raw_prompt(call, encoded), kind, episode)
        else:
            proof.unchecked["raw ids"] += int(call.suffix_ids.size)
            replay.raw_prompt(call, None)
        if call.reply is None:
            proof.unchecked["no reply"] += int(call.response_ids.size)
        else:
            _check_reply(proof, call, replay.reply_problem(call), episode)


def _check_prompt(proof: Proof, call: Call, problem: Problem | None, kind: TokenClass, episode: str) -> None:
    tally, size = proof.counts[kind], int(call.suffix_ids.size)
    tally.checked += size
    if problem is None:
        tally.equal += size
        return
    position, what, expected, found = problem
    tally.equal += min(max(0, position - call.prefix), size)
    proof.wrong.append(WrongToken(episode, call.index, position, what, expected, found))


def _check_reply(proof: Proof, call: Call, bad: int | None, episode: str) -> None:
    tally, size = proof.counts["sampled"], int(call.response_ids.size)
    tally.checked += size
    tally.equal += size if bad is None else bad
    if bad is not None:
        found = at_position(call.response_ids, bad)
        what = "the reply's ids do not say what its message says"
        what += f" (token {found})" if found is not None else " (they end too early)"
        proof.wrong.append(WrongToken(episode, call.index, prompt_size(call) + bad, what))


class _Replay:
    """One episode's session, once more. Calls must be given in order, each to one of the methods."""

    def __init__(
        self,
        calls: Sequence[Call],
        messages: Sequence[Message],
        tools: Sequence[Sequence[Message]],
        words: Words,
    ) -> None:
        self._calls, self._messages, self._tools, self._words = calls, messages, tools, words
        self._reader = PromptReader(calls)
        self._conversations = Conversations()
        self._untold = [call for call in calls if call.reply is not None and call.messages]
        self._extends: dict[int, int | None] = {}
        """Call -> the one that its messages continue, whether or not its ids do."""
        self._prompts: dict[int, Any] = {}
        """Call -> its prompt as rendered again, with the recorded ids."""
        self._keys: dict[int, Any] = {}
        """Message -> what makes it the same as another."""
        self._dark = {index for index, message in enumerate(messages) if _BLOTTED in json.dumps(message, default=str)}
        self._dark_tools = {index for index, listed in enumerate(tools) if _BLOTTED in json.dumps(listed, default=str)}

    def hidden(self, call: Call) -> bool:
        """Whether the record keeps something from us that the tokenizer saw, in this call or one it builds on."""
        if call.terms.raw_prompt is not None and _BLOTTED in call.terms.raw_prompt.text:
            return True
        said = {*call.messages, call.reply} if call.reply is not None else set(call.messages)
        return not self._dark.isdisjoint(said) or call.tools in self._dark_tools

    def pass_over(self, call: Call) -> None:
        """A call without tokens, or with hidden words: it is only matched."""
        if call.messages:
            self._match(call)

    def raw_prompt(self, call: Call, encoded: RawPrompt | None) -> Problem | None:
        """What is wrong with the prompt of a call whose client sent a text (`encoded`: what of it had to be encoded,
        after how many ids of its parent's), if anything. With None it sent ids: only the reply can be read."""
        recorded = self._reader.prompt_ids(call.index)
        self._prompts[call.index] = self._words.raw(recorded.tolist())
        if encoded is None:
            return None
        after, text = encoded.after, encoded.text
        if after > call.prefix:
            return call.prefix, "ids said to be the parent's are not", None, None
        wanted = self._words.encode(text) if after else self._words.raw(text).ids
        wrong = first_difference(recorded[after:], wanted)
        if wrong is None:
            return None
        expected, found = at_position(wanted, wrong), at_position(recorded[after:], wrong)
        return after + wrong, "the prompt's text has another id here", expected, found

    def prompt_problem(self, call: Call) -> Problem | None:
        """The problem of a call's prompt; None where its ids are those derived again."""
        recorded = self._reader.prompt_ids(call.index)
        match = self._match(call)
        kept = match.extends if match.extends in self._prompts else None
        if match.extends is not None and kept is None and self._calls[match.extends].response_ids.size:
            return None  # it builds on one whose words the record hides
        told = self._spoken(call, match.extends)
        tools = self._tools_of(call)
        prompt: Any = None
        try:
            if kept is not None:
                earlier = self._calls[kept]
                prompt = self._words.extend(
                    self._prompts[kept],
                    earlier.response_ids,
                    earlier.finish,
                    told,
                    tools,
                    verbatim=earlier.stop is None,
                )
            extended = prompt is not None
            if prompt is None:
                prompt = self._words.render(told, tools)
                extended = kept is not None and prompt.text.startswith(self._said(kept))
            if call.terms.tool_choice in ("required", "named"):
                prompt = self._words.force_call(prompt, call.terms.named_tool)
        except AjetError as refusal:
            return 0, f"this prompt cannot be rendered again: {refusal}", None, None
        self._prompts[call.index] = replace(prompt, ids=recorded)
        goes_on = [kept] if extended and kept is not None else []
        known = max((len(self._calls[index].messages) for index in goes_on), default=0)
        return (
            self._re_encoded(recorded, goes_on)
            or (self._re_encoded(recorded, self._quoted(call, beyond=known)) if call.fork is None else None)
            or _differing(recorded, prompt.ids)
        )

    def reply_problem(self, call: Call) -> int | None:
        """The first token of the reply that does not say what its recorded message says; its length where it says too
        little."""
        prompt = self._prompts.get(call.index)
        assert call.reply is not None
        recorded = _plain(self._messages[call.reply])
        if prompt is None or _plain(self._stream(call, prompt, call.response_ids.tolist()).message()) == recorded:
            return None
        stream = self._stream(call, prompt, ())
        wanted = _texts([recorded])
        said: dict[str, str] = {}
        for at, token in enumerate(call.response_ids.tolist()):
            for name, text in _texts(stream.feed([token])).items():
                said[name] = said.get(name, "") + text
                if not wanted.get(name, "").startswith(said[name]):
                    return at
        return int(call.response_ids.size)

    def _stream(self, call: Call, prompt: Any, ids: Sequence[int]) -> Any:
        stream = self._words.reply_stream(
            None if call.terms.tool_choice == "none" else self._tools_of(call),
            before=prompt,
            stop=(call.stop,) if call.stop is not None else (),
            single_call=not call.terms.parallel_tool_calls,
        )
        stream.feed(ids)
        return stream

    def _match(self, call: Call) -> Match:
        """What the gateway knew when this call was asked: earlier ones that had been answered by then."""
        for earlier in sorted(self._untold, key=lambda each: (each.ended, each.index)):
            built_on = call.parent == earlier.index and call.prefix > prompt_size(earlier)
            if earlier.index < call.index and (earlier.ended <= call.started or built_on):
                assert earlier.reply is not None
                reply = self._messages[earlier.reply]
                self._conversations.add_reply(earlier.index, earlier.agent, reply, earlier.stop)
                self._untold.remove(earlier)
        match = self._conversations.match(call.agent, [self._messages[index] for index in call.messages])
        self._conversations.add_request(call.index, match)
        self._extends[call.index] = match.extends
        return match

    def _spoken(self, call: Call, extends: int | None) -> list[Message]:
        """The request, with each reply that it quotes as the model gave it."""
        told = [self._messages[index] for index in call.messages]
        while extends is not None:
            earlier = self._calls[extends]
            if earlier.reply is not None:
                at, reply = len(earlier.messages), self._messages[earlier.reply]
                told[at] = restore_reply(told[at], reply, earlier.stop)
            extends = self._extends[extends]
        return told

    def _tools_of(self, call: Call) -> Sequence[Message] | None:
        return None if call.tools is None else self._tools[call.tools]

    def _said(self, index: int) -> str:
        """A call's prompt and reply as text. Where the template begins a later prompt with it, nothing forks."""
        before, reply = self._prompts[index], self._calls[index].response_ids
        said: str = before.text + self._words.decode(reply, after=before.ids)
        return said

    def _quoted(self, call: Call, *, beyond: int) -> list[int]:
        """The calls whose messages and reply begin this one's, as matching compares messages: the longest, where they
        have more than `beyond` messages."""
        found = [
            earlier.index
            for earlier in self._calls[: call.index]
            if earlier.reply is not None
            and beyond < len(earlier.messages) < len(call.messages)
            and earlier.stop is None
            and earlier.response_ids.size
            and earlier.ended <= call.started
            and matches_reasoning(self._messages[call.messages[len(earlier.messages)]], self._messages[earlier.reply])
            and all(map(self._alike, (*earlier.messages, earlier.reply), call.messages))
        ]
        longest = max((len(self._calls[index].messages) for index in found), default=0)
        return [index for index in found if len(self._calls[index].messages) == longest]

    def _alike(self, one: int, other: int) -> bool:
        """Whether two messages are the same for matching."""
        return one == other or self._key(one) == self._key(other)

    def _key(self, message: int) -> Any:
        if message not in self._keys:
            self._keys[message] = message_key(self._messages[message])
        return self._keys[message]

    def _re_encoded(self, recorded: Ids, sources: Sequence[int]) -> Problem | None:
        """Where the prompt leaves the ids of the call that it continues; None if it begins with one's."""
        furthest: tuple[int, int, Ids] | None = None
        for source in sources:
            whole = self._reader.full_ids(source)
            at = first_difference(recorded[: whole.size], whole)
            if at is None:
                return None
            if furthest is None or at > furthest[0]:
                furthest = at, source, whole
        if furthest is None:
            return None
        at, source, whole = furthest
        what = f"the prompt continues call {source}, but its ids are not kept: text was encoded again"
        return at, what, at_position(whole, at), at_position(recorded, at)


def _differing(recorded: Ids, expected: Ids) -> Problem | None:
    at = first_difference(recorded, expected)
    if at is None:
        return None
    what = "the prompt is not what template and tokenizer give"
    return at, what, at_position(expected, at), at_position(recorded, at)


def _plain(message: Mapping[str, Any]) -> Message:
    """A message without the ids that the gateway gave its tool calls."""
    plain = dict(message)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [
            {name: value for name, value in call.items() if name not in ("id", "index")} for call in plain["tool_calls"]
        ]
    return plain


def _texts(deltas: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The strings of a message or of deltas, by where they belong."""
    texts: dict[str, str] = {}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            texts[name] = texts.get(name, "") + (delta.get(name) or "")
        for at, call in enumerate(delta.get("tool_calls") or ()):
            name = f"tool {call.get('index', at)}"
            function = call.get("function") or {}
            texts[name] = texts.get(name, "") + (function.get("name") or "") + (function.get("arguments") or "")
    return texts
