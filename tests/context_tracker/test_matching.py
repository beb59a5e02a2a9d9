"""Which earlier call a request extends, and why not."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.context_tracker.matching import Conversations, Match, message_key

SYSTEM = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


def says(text, **more):
    return {"role": "assistant", "content": text, **more}


def calling(arguments, call_id="call_0_0", content=None):
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


class Talk:
    """A session's calls, in order."""

    def __init__(self) -> None:
        self.seen = Conversations()
        self.count = 0

    def ask(self, messages, reply=None, agent="a", tools=None) -> Match:
        match = self.seen.match(agent, messages)
        self.seen.add_request(self.count, match, tools)
        if reply is not None:
            self.seen.add_reply(self.count, agent, reply)
        self.count += 1
        return match


def test_a_request_extends_the_call_whose_reply_it_quotes():
    talk = Talk()
    assert talk.ask([SYSTEM, user("1")], says("one")).extends is None
    second = talk.ask([SYSTEM, user("1"), says("one"), user("2")], says("two"))
    assert (second.extends, second.reason) == (0, None)
    third = talk.ask([SYSTEM, user("1"), says("one"), user("2"), says("two"), user("3")])
    assert (third.extends, third.reason) == (1, None)


@pytest.mark.parametrize(
    "echo",
    [
        calling('{"b": 2, "a": "é"}'),
        calling('{ "a":"\\u00e9","b":2 }', call_id="mine"),
        calling('{"a": "é", "b": 2}', content=""),
        calling('{"a": "é", "b": 2}', content=[]),
        calling('{"a": "é", "b": 2}', content="\n"),
    ],
)
def test_a_tool_call_is_the_same_however_it_is_written(echo):
    talk = Talk()
    talk.ask([user("1")], calling('{"a": "é", "b": 2}'))
    assert talk.ask([user("1"), echo, {"role": "tool", "tool_call_id": "mine", "content": "3"}]).extends == 0


@pytest.mark.parametrize(
    "echo", [calling('{"a": 2}'), calling("{"), calling('{"a": 1}', content="so"), says(""), says('{"a": 1}')]
)
def test_another_tool_call_is_an_edit(echo):
    talk = Talk()
    talk.ask([user("1")], calling('{"a": 1}'))
    match = talk.ask([user("1"), echo, user("2")])
    assert (match.extends, talk.seen.find_nearest(match.keys[:1]), match.reason) == (None, 1, "client_edit")


def test_blocks_of_text_equal_the_string_and_reasoning_may_be_left_out_but_not_changed():
    talk = Talk()
    talk.ask([user("1")], says("one", reasoning_content="hm"))
    blocks = [{"type": "text", "text": "on"}, {"type": "text", "text": "e"}]
    assert talk.ask([user("1"), says(blocks), user("2")]).extends == 0
    assert talk.ask([user("1"), says("one", reasoning_content=" hm\n"), user("2")]).extends == 0
    assert talk.ask([user("1"), says("one", reasoning_content="no"), user("2")]).extends is None
    assert talk.ask([user("1"), says("one", reasoning_content="m"), user("2")]).extends == 0, "all that Node keeps"


@pytest.mark.parametrize(
    "text", ["<think>\nhm\n</think>\n\none", "<think>hm</think>one", [{"text": "<think>hm</think>\none"}]]
)
def test_thoughts_folded_into_the_text_are_recognised(text):
    talk = Talk()
    talk.ask([user("1")], says("one", reasoning_content="hm"))
    second = talk.ask([user("1"), says(text), user("2")], says("two"))
    assert second.extends == 0
    assert talk.ask([user("1"), says(text), user("2"), says("two"), user("3")]).extends == 1
    assert talk.ask([user("1"), says("one"), user("2"), says("two"), user("3")]).extends == 1


def test_newline_before_a_folded_replys_call_is_no_edit():
    talk = Talk()
    talk.ask([user("1")], {**calling("{}", content="I add."), "reasoning_content": "hm"})
    assert talk.ask([user("1"), calling("{}", content="<think>\nhm\n</think>\n\nI add.\n")]).extends == 0


@pytest.mark.parametrize(
    "text", ["<think>\nm\n</think>\n\none", "<think></think>one", "<think>hm</think>two", "<think>hm one"]
)
def test_other_folded_thoughts_are_an_edit(text):
    talk = Talk()
    talk.ask([user("1")], says("one", reasoning_content="hm"))
    match = talk.ask([user("1"), says(text), user("2")])
    assert (match.extends, match.reason) == (None, "client_edit")


def test_unparsed_thoughts_stay_part_of_the_text():
    talk = Talk()
    talk.ask([user("1")], says("<think>a</think>one", reasoning_content="hm"))
    assert talk.ask([user("1"), says("<think>a</think>one"), user("2")]).extends == 0
    assert talk.ask([user("1"), says("<think>b</think>one"), user("2")]).extends is None


def test_ties_go_to_the_agents_latest_call():
    talk = Talk()
    for agent in ("a", "b", "a", "b"):
        talk.ask([user("1")], says("one"), agent=agent)
    again = [user("1"), says("one"), user("2")]
    assert talk.ask(again, agent="a").extends == 2
    assert talk.ask(again, agent="b").extends == 3
    assert talk.ask(again, agent="c").extends == 3


def test_among_equal_texts_the_quoted_reasoning_decides():
    talk = Talk()
    talk.ask([user("1")], says("one", reasoning_content="first"))
    talk.ask([user("1")], says("one", reasoning_content="second"))
    assert talk.ask([user("1"), says("one", reasoning_content="first"), user("2")]).extends == 0


def test_a_changed_later_turn_still_extends_the_turn_before_it():
    talk = Talk()
    talk.ask([user("1")], says("one"))
    talk.ask([user("1"), says("one"), user("2")], says("two"))
    match = talk.ask([user("1"), says("one"), user("2"), says("TWO"), user("3")])
    assert (match.extends, match.reason) == (0, None)


def test_new_conversations_and_parallel_calls_are_no_forks():
    talk = Talk()
    shots = [SYSTEM, user("example"), says("shown")]
    talk.ask([*shots, user("1")], says("one"))
    assert talk.ask([*shots, user("1")], says("uno")).reason is None
    assert talk.ask([*shots, user("2")], says("two")).reason is None
    assert talk.ask([SYSTEM, user("3")], says("three")).reason is None


def test_why_a_conversation_forked():
    talk = Talk()
    talk.ask([SYSTEM, user("1")], says("one"))
    talk.ask([SYSTEM, user("1"), says("one"), user("2")], says("two"))
    history = [SYSTEM, user("1"), says("one"), user("2"), says("two")]

    def why(messages):
        return talk.seen.match("a", messages).reason

    assert why([*history[:2], says("ONE"), user("2")]) == "client_edit"
    assert why([{**SYSTEM, "content": "Be long."}, *history[1:], user("3")]) == "client_edit"
    assert why([SYSTEM, *history[3:], user("3")]) == "client_edit"  # the oldest turn dropped
    assert why([SYSTEM, user("1"), user("Summary: one, two."), user("3")]) == "compaction"
    assert why([SYSTEM, user("Summary: one, two."), *history[3:]]) == "compaction"
    assert talk.seen.match("b", [SYSTEM, user("1"), user("else")]).reason is None


def test_a_title_call_hides_no_fork():
    talk = Talk()
    first = [SYSTEM, user("1")]
    talk.ask(first, says("one"))
    title = [{"role": "system", "content": "Name the task."}, user("1")]
    talk.ask(title, says("Numbers"))
    assert talk.ask([*first, says("ONE"), user("2")], says("two")).reason == "client_edit"
    talk.ask([*title, user("Shorter.")], says("N"))
    long = [*first, says("ONE"), user("2"), says("two"), user("3")]
    assert talk.ask(long, says("three")).extends == 2
    talk.ask([*title, user("Shorter!")], says("N"))
    assert talk.ask([*first, user("Summary: one, two, three.")]).reason == "compaction"
    assert talk.ask(title).reason is None, "the same question once more"


def test_each_compaction_of_a_conversation_is_counted():
    talk = Talk()
    history = [SYSTEM, user("task")]
    for summary in ("one", "one, two", "one, two, three"):
        talk.ask(history, says("next"))
        history = [*history, says("next"), user("note"), says("next"), user("sum up")]
        talk.ask(history, says(summary))
        history = [SYSTEM, user("task"), user(f"Summary: {summary}.")]
        assert talk.seen.match("a", history).reason == "compaction"
    assert talk.seen.match("a", [SYSTEM, user("another task")]).reason is None


def test_a_call_without_a_reply_cannot_be_extended():
    talk = Talk()
    talk.ask([user("1")])
    match = talk.ask([user("1"), says("one"), user("2")])
    assert (match.extends, match.reason) == (None, None)


def test_nearest_call_has_the_same_tools_and_most_messages():
    talk = Talk()
    first = talk.ask([SYSTEM, user("1")], says("one"))
    talk.ask([SYSTEM, user("1"), says("one"), user("2")], says("two"), tools=0)
    talk.ask([SYSTEM, user("3")], says("three"), tools=0)
    assert talk.seen.find_nearest(first.keys) == 0  # as before, not the latest call with these messages
    assert talk.seen.find_nearest(first.keys, 0) == 1
    assert talk.seen.find_nearest(first.keys[:1], 0) == 2
    assert talk.seen.find_nearest(first.keys, 1) == 1  # no call has these tools
    assert talk.seen.find_nearest([("user", "else")]) is None


MESSAGES = st.one_of(
    st.builds(user, st.sampled_from("12")),
    st.builds(says, st.sampled_from(["one", "two", ""])),
    st.builds(lambda a: calling(json.dumps(a)), st.dictionaries(st.sampled_from("ab"), st.integers(0, 1))),
)


SIDE = {"role": "system", "content": "Name the task."}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.lists(MESSAGES, min_size=1, max_size=4), MESSAGES), min_size=1, max_size=5),
    st.lists(MESSAGES, min_size=1, max_size=4),
    st.data(),
)
def test_calls_of_other_conversations_change_no_reason(asked, last, data):
    alone, among = Talk(), Talk()
    for messages, reply in asked:
        for _ in range(data.draw(st.integers(0, 2))):
            among.ask([SIDE, *messages], says("a title"))
        reply = {**reply, "role": "assistant"}
        assert among.ask(messages, reply).reason == alone.ask(messages, reply).reason
    among.ask([SIDE, user("1")], says("a title"))
    assert among.ask(last).reason == alone.ask(last).reason


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(MESSAGES, min_size=1, max_size=4), MESSAGES, st.sampled_from("ab")), max_size=8))
def test_the_trie_finds_what_comparing_with_every_call_finds(asked):
    talk = Talk()
    calls = []
    for messages, reply, agent in asked:
        match = talk.ask(copy.deepcopy(messages), {**reply, "role": "assistant"}, agent)
        keys = [message_key(message) for message in messages]
        fitting = [
            (len(theirs), whose == agent, index)
            for index, (theirs, whose) in enumerate(calls)
            if keys[: len(theirs)] == theirs
        ]
        assert match.extends == (max(fitting)[2] if fitting else None)
        calls.append(([*keys, message_key({**reply, "role": "assistant"})], agent))
