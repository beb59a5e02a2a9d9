"""The tasks: customers' mails. The held-out ones have other words, names, things, order numbers and dates."""

import random

from ajet import Task

MONTHS = "January February March April June July August September October November December".split()  # noqa: SIM905
WORDS = {
    "train": {
        "numbers": range(10001, 99999, 2),
        "names": ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack"],
        "things": ["lamp", "chair", "keyboard", "jacket", "kettle", "backpack", "monitor", "blender"],
        "mails": [
            "Hi, where is my order {order}? It was a {thing}. {name}",
            "Hello, my {thing} has not arrived yet. The order number is {order}. Thanks, {name}",
            "I am {name}. Can you tell me when order {order} will come? It is a {thing}.",
            "Order {order}: still no {thing}! What is going on? {name}",
            "{name} here. No. {order}, the {thing}, please let me know the date.",
            "When does {order} arrive? I need the {thing} soon. {name}",
            "Reference {order}. I am waiting for my {thing}. Kind regards, {name}",
            "The {thing} with the number {order} cost me {price} dollars. Where is it? {name}",
            "Dear team, I paid {price} dollars for a {thing}, order {order}. When do I get it? {name}",
            "{price} dollars gone and no {thing}! Number {order}. {name}",
            "I spent {price} dollars on the {thing} ({order}) and hear nothing. {name}",
            "My {thing}, bought for {price} dollars, is filed under {order}. Has it left? Best, {name}",
            "I sent you {price} dollars weeks ago, and there is no {thing}. It is {order}. {name}",
            "Is {price} dollars not enough for a {thing} on time? My number is {order}. {name}",
            "The bill says {price} dollars and the receipt says {order}. Where is my {thing}? {name}",
            "You took {price} dollars. The {thing} of order {order} is late. {name}",
        ],
    },
    "validation": {
        "numbers": range(10000, 99999, 2),
        "names": ["Kate", "Leo", "Mona", "Nick", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor"],
        "things": ["watch", "tent", "mirror", "guitar", "printer", "suitcase", "clock", "pillow"],
        "mails": [
            "Any news of the {thing} I bought? My order is {order}. Greetings, {name}",
            "We are still waiting for order {order} ({thing}). When can we expect it? {name}",
            "Has the {thing} been sent? {order} is what your shop wrote to me. {name}",
            "{name}, order {order}, one {thing}. Still nothing in my mailbox.",
            "Good evening, {name} writing. How long until the {thing} is here? Order no. {order}.",
            "It is {name} again. I gave you {price} dollars and got no {thing}. See {order}.",
            "For {price} dollars I expected the {thing} sooner. Please check {order}. {name}",
            "My {thing} was {price} dollars and should be here by now. Its number: {order}. {name}",
        ],
    },
}
SIZES = {"train": 512, "validation": 64}


class Mails:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config: object) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        draw, words = random.Random(split), WORDS[split]  # the same mails whatever the run's seed
        tasks = []
        for number in range(SIZES[split]):
            order = str(draw.choice(words["numbers"]))
            arrives = f"{draw.randint(1, 28)} {draw.choice(MONTHS)}"
            mail = words["mails"][number % len(words["mails"])].format(
                order=order,
                name=draw.choice(words["names"]),
                thing=draw.choice(words["things"]),
                price=draw.randint(20, 90),
            )
            tasks.append(
                Task(task_id=f"{split}-{number}", main_query=mail, metadata={"order": order, "arrives": arrives})
            )
        return tasks
