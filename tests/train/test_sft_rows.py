"""Rows to lessons: what may stand in a line, which tokens are learned, and that the proof derives them again."""

from __future__ import annotations

import json

import pytest

from ajet.config.schema import AjetConfig
from ajet.schema.errors import TaskError, UserError
from ajet.tokens import Renderer
from ajet.tokens.template_doctor import TOOL, call, result
from ajet.train.sft.lessons import make_lesson
from ajet.train.sft.reading import require_same_tokenizer
from ajet.train.sft.rows import read_files
from ajet_proof.recorded.prove import prove_episode
from tests.support.published_templates import FAMILIES, family

USER = {"role": "user", "content": "What is it?"}
ANSWER = {"role": "assistant", "content": "It is a boat."}
MORE = [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
CALL = call("skiff", 1)
CALLING = [{"role": "assistant", "content": None, "tool_calls": [CALL]}, result(CALL, "a small boat")]
TALKS = {
    "turns": {"messages": [USER, ANSWER, *MORE]},
    "thoughts": {"messages": [USER, {**ANSWER, "reasoning_content": "Hm."}, *MORE]},
    "tools": {"messages": [USER, *CALLING, ANSWER, *MORE], "tools": [TOOL]},
}
REFUSED = {("thoughts", name) for name in ("hermes", "llama3", "llama3.2", "qwen2.5", "smollm2")} | {
    ("tools", "hermes")
}
"""Templates without room for a thought, and one that shows a tool's result otherwise once it is not the last."""


def lessons(tmp_path, words, *rows, pairs=False):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [make_lesson(row, words) for row in read_files("rows.jsonl", tmp_path, pairs=pairs, key="sft.train_files")]


def learned(episode, words):
    """The text of what has mask 1, timeline by timeline."""
    return [words.decode(line.ids[line.mask]) for line in episode.timelines]


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("kind", [*TALKS])
def test_each_family_is_exact_or_refused(tmp_path, kind, name):
    words = Renderer(family(name))
    if (kind, name) in REFUSED:
        with pytest.raises(TaskError, match="exactly in tokens"):
            lessons(tmp_path, words, TALKS[kind])
        return
    (lesson,) = lessons(tmp_path, words, TALKS[kind])
    (episode,) = lesson.make_group("run", 1, 0).episodes
    proof = prove_episode(episode, AjetConfig(), words, newest=0)
    assert proof.ok, str(proof)
    assert proof.counts["sampled"].equal == sum(line.sampled for line in episode.timelines) == episode.sampled_tokens
    assert "boat" in "".join(learned(episode, words)) and "What is it" not in "".join(learned(episode, words))


def test_only_the_assistants_words_are_learned_with_the_end_of_each(tmp_path):
    words = Renderer(family("qwen2.5"))
    (lesson,) = lessons(tmp_path, words, TALKS["turns"])
    (episode,) = lesson.make_group("run", 1, 0).episodes
    assert learned(episode, words) == ["It is a boat.<|im_end|>Yes.<|im_end|>"], "one timeline: the turns go on"
    (line,) = episode.timelines
    assert set(line.versions.tolist()) == {-1} and not line.logprobs.any(), "nobody sampled it"


def test_a_weight_of_0_and_a_prompt_are_context(tmp_path):
    words = Renderer(family("qwen2.5"))
    skipped = {"messages": [USER, {**ANSWER, "weight": 0}, *MORE]}
    completed = {"prompt": [USER, ANSWER, MORE[0]], "completion": [MORE[1]]}
    for lesson in lessons(tmp_path, words, skipped, completed):
        (episode,) = lesson.make_group("run", 1, 0).episodes
        assert learned(episode, words) == ["Yes.<|im_end|>"]
        trained = sum(line.sampled for line in episode.timelines)
        assert episode.sampled_tokens == trained + episode.untrained["not_trainable"] > trained


def test_a_pair_shares_its_prompt_and_differs_in_what_is_learned(tmp_path):
    words = Renderer(family("qwen2.5"))
    other = {"role": "assistant", "content": "It is a whale."}
    explicit = {"prompt": [USER], "chosen": [ANSWER], "rejected": [other]}
    implicit = {"chosen": [USER, ANSWER], "rejected": [USER, other]}
    for lesson in lessons(tmp_path, words, explicit, implicit, pairs=True):
        chosen, rejected = lesson.make_group("run", 1, 0).episodes
        assert learned(chosen, words) == ["It is a boat.<|im_end|>"]
        assert learned(rejected, words) == ["It is a whale.<|im_end|>"]
        assert (chosen.repeat, rejected.repeat) == (0, 1) and chosen.group == rejected.group


BAD = {
    "no `messages`": {"text": "hello"},
    "expected a list of messages": {"messages": "hello"},
    "an empty list": {"messages": []},
    "`messages` is a number, expected": {"messages": 5},
    "has the role 'robot'": {"messages": [USER, {"role": "robot", "content": "x"}]},
    "neither content nor tool calls": {"messages": [USER, {"role": "assistant", "content": None}]},
    "no reply of the assistant": {"messages": [USER]},
    "contains no function name": {
        "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]
    },
    "has the weight": {"messages": [USER, {**ANSWER, "weight": 0.5}]},
    "tool_calls is a number": {"messages": [USER, {**ANSWER, "tool_calls": 5}]},
    "tool_calls[0].id is a number": {"messages": [USER, {**ANSWER, "tool_calls": [{**CALL, "id": 5}]}]},
    "tool_call_id is an object": {
        "messages": [USER, {"role": "tool", "content": "x", "tool_call_id": {"a": 1}}, ANSWER]
    },
    "reasoning_content is a list": {"messages": [USER, {**ANSWER, "reasoning_content": ["Hm."]}]},
    "`tools` is not a list": {"messages": [USER, ANSWER], "tools": [{"name": "f"}]},
}


@pytest.mark.parametrize("why", [*BAD])
def test_a_bad_row_is_named_by_file_and_line(tmp_path, why):
    with pytest.raises(TaskError) as caught:
        lessons(tmp_path, Renderer(family("qwen2.5")), TALKS["turns"], BAD[why])
    assert why in caught.value.what and caught.value.where.endswith("rows.jsonl:2")


def test_a_pair_of_equals_and_a_reply_that_spells_an_end_token_are_refused(tmp_path):
    words = Renderer(family("qwen2.5"))
    with pytest.raises(TaskError, match="are the same"):
        lessons(tmp_path, words, {"prompt": [USER], "chosen": [ANSWER], "rejected": [ANSWER]}, pairs=True)
    with pytest.raises(TaskError, match="end token"):
        lessons(tmp_path, words, {"messages": [USER, {"role": "assistant", "content": "a<|im_end|>\nb"}]})


def test_files_of_one_name_are_two(tmp_path):
    for folder, said in (("a", "a boat"), ("b", "a whale")):
        (tmp_path / folder).mkdir()
        row = {"messages": [USER, {"role": "assistant", "content": said}]}
        (tmp_path / folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    rows = read_files(["a/rows.jsonl", "b/rows.jsonl"], tmp_path, pairs=False, key="sft.train_files")
    assert [row.task.task_id for row in rows] == ["rows.jsonl:1", "rows.jsonl(2):1"], "a step finds a row by its name"


def test_ids_of_another_tokenizer_are_refused(tmp_path):
    words, other = Renderer(family("qwen2.5")), Renderer(family("llama3.2"))
    taken = lessons(tmp_path, words, TALKS["turns"])
    require_same_tokenizer(taken, words, "run")
    with pytest.raises(UserError, match="another tokenizer made them"):
        require_same_tokenizer(taken, other, "run")


def test_where_a_line_lacks_its_end_is_said_by_its_own_columns(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"messages": [\n')
    with pytest.raises(TaskError, match=r"at column 15\)"):
        list(read_files("rows.jsonl", tmp_path, pairs=False, key="sft.train_files"))
