"""Which call a raw prompt goes on from: the longest that begins it, found without keeping any text."""

from hypothesis import given
from hypothesis import strategies as st

from ajet.context_tracker.texts import RawPrompts

TEXTS = st.text(alphabet="abé", max_size=6)


@given(st.lists(st.tuples(st.sampled_from("xy"), TEXTS), max_size=12), st.sampled_from("xyz"), TEXTS)
def test_the_longest_beginning_is_found_and_ties_go_to_the_agents_latest(told, agent, prompt):
    texts = RawPrompts()
    for index, (speaker, text) in enumerate(told):
        texts.add_reply(index, speaker, text)
    begins = [(len(text), index, speaker) for index, (speaker, text) in enumerate(told) if prompt.startswith(text)]
    longest = max((length for length, _, _ in begins), default=None)
    fitting = [(index, speaker) for length, index, speaker in begins if length == longest]
    own = [index for index, speaker in fitting if speaker == agent]
    expected = max(own or [index for index, _ in fitting], default=None)
    assert texts.match(agent, prompt) == (expected, None)


@given(st.lists(TEXTS, max_size=12), TEXTS)
def test_longest_equal_beginning_among_prompts_is_found(asked, prompt):
    texts = RawPrompts()
    for index, text in enumerate(asked):
        texts.add_request(index, text)
    longest = max((text for text in asked if prompt.startswith(text)), key=len, default=None)
    assert texts.match("a", prompt) == (None, None if longest is None else asked.index(longest))


def test_a_text_of_lone_surrogates_is_no_accident():
    texts = RawPrompts()
    texts.add_reply(0, "a", "\ud800")
    assert texts.match("a", "\ud800!") == (0, None)
