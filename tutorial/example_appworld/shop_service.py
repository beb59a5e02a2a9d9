"""A small world in AppWorld's manner: the agent acts by code over two apps, `notes` and `shop`, and the state of the
world is what is judged. Its code is one call an action, read as data and never run.

`ajet env serve shop_service.py->Shop`. It stands in for AppWorld itself, whose data must be downloaded."""

import ast
import random

GOODS = ("tea", "rice", "soap", "bread", "milk", "salt", "oats", "figs")
RULES = """You act in a small world by writing one call a turn, and nothing else:
notes.read() shows the shopping list; shop.price("tea") tells a price;
shop.buy("tea", 2) buys; done() ends the task."""


def shopping_list(task_id):
    draw = random.Random(task_id)
    return {item: draw.randint(1, 3) for item in draw.sample(GOODS, 2)}


HELD_OUT = {task_id: shopping_list(task_id) for task_id in (f"dev-{n}" for n in range(20))}
TRAIN = [task_id for task_id in (f"train-{n}" for n in range(200)) if shopping_list(task_id) not in HELD_OUT.values()]


class Shop:
    tasks = {"train": TRAIN, "dev": [*HELD_OUT]}

    def create(self, task_id):
        draw = random.Random(f"prices of {task_id}")
        self.list = shopping_list(task_id)
        self.prices = {item: draw.randint(1, 9) for item in GOODS}
        self.bought, self.over = {}, False
        return [{"role": "system", "content": RULES}, {"role": "user", "content": "Buy what is on the shopping list."}]

    def step(self, code):
        try:
            told = self.act(*parsed(code))
        except (ValueError, TypeError) as problem:  # the agent's own doing: it is told, and may try again
            told = f"error: {problem}"
        return told, 0.0, self.over

    def act(self, name, *arguments):
        if name == "notes.read":
            return ", ".join(f"{count} {item}" for item, count in self.list.items())
        if name == "shop.price":
            return str(self.prices[self.known(*arguments)])
        if name == "shop.buy":
            item, count = arguments
            self.bought[self.known(item)] = self.bought.get(item, 0) + int(count)
            return f"bought {count} {item}"
        if name == "done":
            self.over = True
            return "over"
        raise ValueError(f"there is no {name}()")

    def known(self, item):
        if item not in self.prices:
            raise ValueError(f"the shop has no {item}")
        return item

    def evaluate(self):
        """The share of the list that was bought, and nothing for what was not on it."""
        right = sum(self.bought.get(item) == count for item, count in self.list.items())
        return max(0.0, (right - len(self.bought.keys() - self.list.keys())) / len(self.list))


def parsed(code):
    """(name, arguments…) of the last line that is a call of names with plain values."""
    for line in reversed(code.replace("`", "").splitlines()):
        try:
            call = ast.parse(line.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            continue
        if isinstance(call, ast.Call) and not call.keywords:
            return ast.unparse(call.func), *(ast.literal_eval(each) for each in call.args)
    raise ValueError("write one call, such as notes.read()")
