"""Renders the prompt and parses the reply of every model call again, and compares the token ids.

Invariant: the session is replayed from its messages, not from recorded matches: each request is matched to earlier
calls again, and a prompt that extends a call must begin with the exact ids of that call. An error of an earlier call is
reported once, not in the calls that build on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.context_tracker.matching import Conversations, Match, matches_reasoning, message_key, restore_reply
from ajet.schema.call import Call, Ids, PromptReader, RawPrompt
from ajet.schema.errors import AjetError
from ajet_proof.tokens.proof_findings import (
    REDACTED,
    Proof,
    TokenClass,
    WrongToken,
    count_prompt_tokens,
    find_first_difference,
    get_token,
)

if TYPE_CHECKING:
    from ajet.tokens import Renderer

Message = dict[str, Any]
PromptProblem = tuple[int, str, int | None, int | None]
"""(index in the prompt, problem, expected id, found id)."""


def prove_prompts(
    proof: Proof,
    calls: Sequence[Call],
    messages: Sequence[Message],
    tools: Sequence[Sequence[Message]],
    renderer: Renderer,
    episode: str,
) -> None:
    """Derive the tokens of every call again, and add counts and wrong tokens to `proof`.

    Args:
        calls: The episode's model calls, in order.
        messages, tools: The episode's messages and tool lists, to which calls refer by index.
        renderer: Renders and tokenizes prompts as in the run.
        episode: Uuid of the episode, for messages.
    """
    replay = _SessionReplay(calls, messages, tools, renderer)
    for call in calls:
        if call.fork is not None:
            proof.forks[call.fork] += 1
        if not count_prompt_tokens(call):
            replay.skip_call(call)
            continue
        kind: TokenClass = "scaffold" if call.fork is None else "forked"
        proof.counts[kind].tokens += int(call.suffix_ids.size)
        proof.counts["sampled"].tokens += int(call.response_ids.size)
        if replay.is_hidden(call):
            replay.skip_call(call)
            proof.unchecked["redacted"] += int(call.suffix_ids.size + call.response_ids.size)
            continue
        if call.messages:
            _check_prompt(proof, call, replay.check_prompt(call), kind, episode)
        elif (encoded := call.terms.raw_prompt) is not None:
            _check_prompt(proof, call, replay.check_raw_prompt(call, encoded), kind, episode)
        else:
            proof.unchecked["raw ids"] += int(call.suffix_ids.size)
            replay.check_raw_prompt(call, None)
        if call.reply is None:
            proof.unchecked["no reply"] += int(call.response_ids.size)
        else:
            _check_reply(proof, call, replay.check_reply(call), episode)


def _check_prompt(proof: Proof, call: Call, problem: PromptProblem | None, kind: TokenClass, episode: str) -> None:
    """Count the checked tokens of a prompt in `proof`, and add its problem, if any.

    Args:
        problem: first difference from the derived prompt, or None.
        kind: class of the tokens that are not shared with an earlier call.
    """
    tally, size = proof.counts[kind], int(call.suffix_ids.size)
    tally.checked += size
    if problem is None:
        tally.equal += size
        return
    position, problem_text, expected, actual = problem
    tally.equal += min(max(0, position - call.prefix), size)
    proof.wrong.append(WrongToken(episode, call.index, position, problem_text, expected, actual))


def _check_reply(proof: Proof, call: Call, wrong_index: int | None, episode: str) -> None:
    """Count the checked tokens of a reply in `proof`, and add its problem, if any.

    Args:
        bad: index of the first token that contradicts the reply's message, or None.
    """
    tally, size = proof.counts["sampled"], int(call.response_ids.size)
    tally.checked += size
    tally.equal += size if wrong_index is None else wrong_index
    if wrong_index is not None:
        token = get_token(call.response_ids, wrong_index)
        problem = "the reply's ids differ from its message"
        problem += f" (token {token})" if token is not None else " (they end too early)"
        proof.wrong.append(WrongToken(episode, call.index, count_prompt_tokens(call) + wrong_index, problem))


class _SessionReplay:
    """Repeats what the gateway did with the requests of one episode.

    Calls must be passed in order, each to one of `check_prompt`, `check_raw_prompt` and `skip_call`.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        messages: Sequence[Message],
        tools: Sequence[Sequence[Message]],
        renderer: Renderer,
    ) -> None:
        """Prepare the replay of an episode. Messages and tool lists with redacted secrets are noted, since they cannot
        be checked."""
        self._calls = calls
        self._messages = messages
        self._tools = tools
        self._renderer = renderer
        self._reader = PromptReader(calls)
        self._conversations = Conversations()
        self._unmatched_calls = [call for call in calls if call.reply is not None and call.messages]
        self._continued_call: dict[int, int | None] = {}
        """Call -> the earlier call whose conversation its messages continue, even if its token ids do not."""
        self._rendered_prompts: dict[int, Any] = {}
        """Call -> its prompt rendered again, with the recorded ids."""
        self._keys: dict[int, Any] = {}
        """Message -> its key by which messages are compared."""
        self._redacted = {
            index for index, message in enumerate(messages) if REDACTED in json.dumps(message, default=str)
        }
        self._redacted_tools = {
            index for index, tool_list in enumerate(tools) if REDACTED in json.dumps(tool_list, default=str)
        }

    def is_hidden(self, call: Call) -> bool:
        """True if a secret was replaced in the recorded texts of this call, so that its tokens cannot be derived."""
        if call.terms.raw_prompt is not None and REDACTED in call.terms.raw_prompt.text:
            return True
        referenced = {*call.messages, call.reply} if call.reply is not None else set(call.messages)
        return not self._redacted.isdisjoint(referenced) or call.tools in self._redacted_tools

    def skip_call(self, call: Call) -> None:
        """Take a call without tokens or with redacted messages into the conversation, without checking its ids."""
        if call.messages:
            self._match_call(call)

    def check_raw_prompt(self, call: Call, encoded: RawPrompt | None) -> PromptProblem | None:
        """Check a prompt that the client sent as text or ids, not as messages.

        Args:
            encoded: the text, and the number of an earlier call's ids before it. None if the client sent ids, which
                cannot be checked.

        Returns:
            The problem of the prompt, or None.
        """
        recorded = self._reader.prompt_ids(call.index)
        self._rendered_prompts[call.index] = self._renderer.raw(recorded.tolist())
        if encoded is None:
            return None
        prefix_length, text = encoded.after, encoded.text
        # The ids before the text are the earlier call's. The gateway compared them, and recorded how many are equal.
        if prefix_length > call.prefix:
            return call.prefix, "ids recorded as the parent's differ", None, None
        # A text that continues ids gets no first token of the tokenizer (BOS), as in the gateway.
        rendered = self._renderer.encode(text) if prefix_length else self._renderer.raw(text).ids
        difference = find_first_difference(recorded[prefix_length:], rendered)
        if difference is None:
            return None
        expected, actual = get_token(rendered, difference), get_token(recorded[prefix_length:], difference)
        return prefix_length + difference, "the prompt's text has another id here", expected, actual

    def check_prompt(self, call: Call) -> PromptProblem | None:
        """Derive the prompt of a call again from its messages.

        Returns:
            The problem of the recorded prompt, or None if its ids equal the derived ones.
        """
        recorded = self._reader.prompt_ids(call.index)
        match = self._match_call(call)
        base_call = match.extends if match.extends in self._rendered_prompts else None
        if match.extends is not None and base_call is None and self._calls[match.extends].response_ids.size:
            return None  # it extends a call whose text the record hides
        request = self._restore_replies(call, match.extends)
        tools = self._get_tools(call)
        prompt: Any = None
        try:
            if base_call is not None:
                earlier = self._calls[base_call]
                prompt = self._renderer.extend(
                    self._rendered_prompts[base_call],
                    earlier.response_ids,
                    earlier.finish,
                    request,
                    tools,
                    verbatim=earlier.stop is None,
                )
            extended = prompt is not None
            if prompt is None:
                prompt = self._renderer.render(request, tools)
                # A prompt rendered anew still extends the earlier call if it begins with the call's text.
                extended = base_call is not None and prompt.text.startswith(self._decode_call(base_call))
            if call.terms.tool_choice in ("required", "named"):
                prompt = self._renderer.force_call(prompt, call.terms.named_tool)
        except AjetError as refusal:
            return 0, f"this prompt cannot be rendered again: {refusal}", None, None
        self._rendered_prompts[call.index] = replace(prompt, ids=recorded)
        continued_calls = [base_call] if extended and base_call is not None else []
        continued_messages = max((len(self._calls[index].messages) for index in continued_calls), default=0)
        # First the ids of the continued call, then those of a quoted call (not for a fork), then template and
        # tokenizer.
        return (
            self._find_re_encoding(recorded, continued_calls)
            or (
                self._find_re_encoding(recorded, self._find_quoted_calls(call, beyond=continued_messages))
                if call.fork is None
                else None
            )
            or _find_difference(recorded, prompt.ids)
        )

    def check_reply(self, call: Call) -> int | None:
        """Parse the tokens of a reply again and compare the result with the recorded message.

        Returns:
            The index of the first token that contradicts the message, the number of tokens if the reply ends too early,
            or None if both agree.
        """
        prompt = self._rendered_prompts.get(call.index)
        assert call.reply is not None
        recorded = _strip_call_ids(self._messages[call.reply])
        if (
            prompt is None
            or _strip_call_ids(self._parse_reply(call, prompt, call.response_ids.tolist()).message()) == recorded
        ):
            return None
        stream = self._parse_reply(call, prompt, ())
        recorded_texts = _collect_texts([recorded])
        parsed: dict[str, str] = {}
        for index, token in enumerate(call.response_ids.tolist()):
            for name, text in _collect_texts(stream.feed([token])).items():
                parsed[name] = parsed.get(name, "") + text
                if not recorded_texts.get(name, "").startswith(parsed[name]):
                    return index
        return int(call.response_ids.size)

    def _parse_reply(self, call: Call, prompt: Any, ids: Sequence[int]) -> Any:
        """Parse a reply's token ids with the call's settings, and return the parser, which can be fed further ids."""
        stream = self._renderer.reply_stream(
            None if call.terms.tool_choice == "none" else self._get_tools(call),
            earlier_prompt=prompt,
            stop=(call.stop,) if call.stop is not None else (),
            single_call=not call.terms.parallel_tool_calls,
        )
        stream.feed(ids)
        return stream

    def _match_call(self, call: Call) -> Match:
        """Find the earlier call that a call continues, among those that were answered before its request.

        The gateway did the same when it received the request.
        """
        for earlier in sorted(self._unmatched_calls, key=lambda reply_call: (reply_call.ended, reply_call.index)):
            # A call whose ids begin with an earlier reply was sent after it, whatever the recorded times say.
            extends_earlier = call.parent == earlier.index and call.prefix > count_prompt_tokens(earlier)
            if earlier.index < call.index and (earlier.ended <= call.started or extends_earlier):
                assert earlier.reply is not None
                reply = self._messages[earlier.reply]
                self._conversations.add_reply(earlier.index, earlier.agent, reply, earlier.stop)
                self._unmatched_calls.remove(earlier)
        match = self._conversations.match(call.agent, [self._messages[index] for index in call.messages])
        self._conversations.add_request(call.index, match)
        self._continued_call[call.index] = match.extends
        return match

    def _restore_replies(self, call: Call, extends: int | None) -> list[Message]:
        """Return the messages of a request, in which earlier replies stand as the model wrote them.

        Clients may send replies back slightly changed.

        Args:
            extends: the earlier call that this call continues, or None.
        """
        request = [self._messages[index] for index in call.messages]
        while extends is not None:
            earlier = self._calls[extends]
            if earlier.reply is not None:
                reply_position, reply = len(earlier.messages), self._messages[earlier.reply]
                request[reply_position] = restore_reply(request[reply_position], reply, earlier.stop)
            extends = self._continued_call[extends]
        return request

    def _get_tools(self, call: Call) -> Sequence[Message] | None:
        """Return the tool list of a call's request, or None if it had none."""
        return None if call.tools is None else self._tools[call.tools]

    def _decode_call(self, index: int) -> str:
        """Return a call's prompt and reply as text.

        If a later prompt begins with this text, it can extend the call's ids.
        """
        prompt, reply = self._rendered_prompts[index], self._calls[index].response_ids
        text: str = prompt.text + self._renderer.decode(reply, after=prompt.ids)
        return text

    def _find_quoted_calls(self, call: Call, *, beyond: int) -> list[int]:
        """Return the earlier calls whose messages and reply are the beginning of this call's messages.

        Only the longest are returned.

        Args:
            beyond: calls with this number of messages or fewer are left out.
        """
        quoted = [
            earlier.index
            for earlier in self._calls[: call.index]
            if earlier.reply is not None
            and beyond < len(earlier.messages) < len(call.messages)
            and earlier.stop is None
            and earlier.response_ids.size
            and earlier.ended <= call.started
            and matches_reasoning(self._messages[call.messages[len(earlier.messages)]], self._messages[earlier.reply])
            and all(map(self._is_same_message, (*earlier.messages, earlier.reply), call.messages))
        ]
        max_messages = max((len(self._calls[index].messages) for index in quoted), default=0)
        return [index for index in quoted if len(self._calls[index].messages) == max_messages]

    def _is_same_message(self, one: int, other: int) -> bool:
        """True if the gateway regards two messages as equal when it matches requests. The arguments are indices."""
        return one == other or self._get_message_key(one) == self._get_message_key(other)

    def _get_message_key(self, message: int) -> Any:
        """Return the key by which the gateway compares messages, from a cache. `message` is the message's index."""
        if message not in self._keys:
            self._keys[message] = message_key(self._messages[message])
        return self._keys[message]

    def _find_re_encoding(self, recorded: Ids, sources: Sequence[int]) -> PromptProblem | None:
        """Check that a prompt begins with the exact ids of an earlier call that it continues.

        Args:
            recorded: The prompt's ids.
            sources: Earlier calls, of which one must match; if empty, nothing is checked.

        Returns:
            None if it does, else the first difference from the call that matches longest.
        """
        furthest: tuple[int, int, Ids] | None = None
        for source in sources:
            full_ids = self._reader.full_ids(source)
            position = find_first_difference(recorded[: full_ids.size], full_ids)
            if position is None:
                return None
            if furthest is None or position > furthest[0]:
                furthest = position, source, full_ids
        if furthest is None:
            return None
        position, source, full_ids = furthest
        problem = f"the prompt continues call {source}, but not its ids: text was encoded again"
        return position, problem, get_token(full_ids, position), get_token(recorded, position)


def _find_difference(recorded: Ids, expected: Ids) -> PromptProblem | None:
    """Return the first difference between a recorded prompt and the derived one, or None if they are equal."""
    position = find_first_difference(recorded, expected)
    if position is None:
        return None
    problem = "the prompt differs from template and tokenizer"
    return position, problem, get_token(expected, position), get_token(recorded, position)


def _strip_call_ids(message: Mapping[str, Any]) -> Message:
    """Return a message without the tool call ids assigned by the gateway."""
    plain = dict(message)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [
            {name: value for name, value in call.items() if name not in ("id", "index")} for call in plain["tool_calls"]
        ]
    return plain


def _collect_texts(deltas: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the texts of a message or of its streamed parts ("deltas"), joined by field."""
    texts: dict[str, str] = {}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            texts[name] = texts.get(name, "") + (delta.get(name) or "")
        for number, call in enumerate(delta.get("tool_calls") or ()):
            name = f"tool {call.get('index', number)}"
            function = call.get("function") or {}
            texts[name] = texts.get(name, "") + (function.get("name") or "") + (function.get("arguments") or "")
    return texts
