"""Held-out tasks that are trained on: as they are, mirrored, in part; and what is no sign of it."""

from __future__ import annotations

from ajet.schema.task import Task
from ajet.task_reader.contamination import find_overlap

STORY = "A farmer has twelve sheep and sells three of them to a neighbour who pays with"


def tasks(*texts: str) -> list[Task]:
    return [Task(main_query=text, task_id=f"t{number}") for number, text in enumerate(texts)]


def test_each_kind_once_by_the_strongest():
    trained = tasks("What is 9 + 4?", "what is  7+1 ?", f"{STORY} two cows. How many sheep are left?")
    held_out = tasks("What is 4 + 9?", "What is 7 + 1?", f"{STORY} apples.", "What is 5 + 5?", "")
    found = find_overlap(trained, held_out)
    assert (found.same, found.mirrored, found.in_part) == (("t1",), ("t0",), ("t2",))
    assert found.found == 3 and found.words() == (
        "3 of 5 validation tasks are also training tasks: 1 as they are (such as t1), 1 in another order (such as t0), "
        "1 in part (such as t2)"
    )


def test_the_wording_of_all_tasks_is_no_sign():
    frame = "You are a careful helper who answers in one word and never says anything else but that: {}"
    assert find_overlap(tasks(frame.format("red")), tasks(frame.format("blue"), frame.format("green"))).words() == ""


def test_messages_count_and_what_the_system_says_does_not():
    def chat(system: str, user: str) -> Task:
        told = [{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": user}]}]
        return Task(init_messages=told, task_id=user)

    assert find_overlap([chat("be brief", "3 * 3")], [chat("be kind", "3 * 3")]).same == ("3 * 3",)


def test_the_same_words_of_another_world_are_another_task():
    """Where trained tasks themselves differ in nothing but what their words ask of."""

    def priced(name: str, price: int | None) -> Task:
        return Task(main_query="What does the jam cost?", task_id=name, metadata={"index": name, "price": price})

    shop = [priced("a", 3), priced("b", 4)]
    assert find_overlap(shop, [priced("c", 5)]).words() == "", "another price"
    assert find_overlap(shop, [priced("c", 4)]).same == ("c",), "that price, whatever its row is called"
    assert find_overlap(shop[:1], [priced("c", 5)]).same == ("c",), "one question of its own: its words are the task"
    assert find_overlap(2 * shop[:1], [priced("c", 5)]).same == ("c",)
    twice = [Task(main_query="6 * 7", task_id=name, metadata={"question_id": name}) for name in "ab"]
    assert find_overlap(twice, [Task(main_query="6 * 7", task_id="c", metadata={"question_id": "c"})]).same == ("c",)
