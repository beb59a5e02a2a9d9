"""Ten small repositories, each at commits with one bug, as Harbor task folders.

python repositories.py tasks                     writes them: seven repositories to train on, three held out
python repositories.py --demonstrations          prints histories of other repositories, for `ajet sft`
"""

import argparse
import json
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from agent import SYSTEM, show_file

TEN = """
bakery: price * 5, flour + 7, oven + 3
bank: balance - 8, fee * 2, interest * 6
cinema: queue - 2, seats * 9, tickets - 4
farm: eggs + 7, fences + 3, hay * 6
garage: fuel - 7, tools - 9, wheels * 4
garden: seeds * 3, water * 8, weeds - 5
hotel: beds * 2, keys + 6, towels + 4
library: loans - 9, pages * 8, shelves - 5
post: boxes + 2, delay - 3, stamps + 6
school: chairs - 4, desks + 9, lessons * 3
"""
HELD_OUT = ("hotel", "library", "school")
SIGNS = "+-*"
NUMBERS = range(2, 10)
TRIED, HIDDEN = 10, (0, 3, 7, 21)
"""What the tests call each function with: those of the repository, and those of the verifier."""
DEMONSTRATIONS = 9600
RUNS_TESTS, IS_RIGHT = 0.35, 0.8
"""Shares of the demonstrations: the tests are run first; the edit after them is right."""
IMAGE = "docker.io/library/python:3.12"

DOCKERFILE = """\
FROM {image}
COPY repository /repository
WORKDIR /repository
ENV GIT_AUTHOR_NAME=tutorial GIT_AUTHOR_EMAIL=t@example.com GIT_AUTHOR_DATE=2026-01-01T00:00Z \\
    GIT_COMMITTER_NAME=tutorial GIT_COMMITTER_EMAIL=t@example.com GIT_COMMITTER_DATE=2026-01-01T00:00Z
RUN git init -q && git add . && git commit -q -m "Begin"
"""
TASK = """\
schema_version = "1.4"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
network_mode = "no-network"
memory_mb = 256
"""
VERIFIER = """\
#!/bin/bash
if PYTHONPATH=/repository python3 /tests/test_{name}.py; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""
SOLUTION = """\
#!/bin/bash
cat /solution/{name}.py > /repository/{name}.py
"""


@dataclass(frozen=True)
class Function:
    """`def name(n): return n sign number`."""

    name: str
    sign: str
    number: int

    def program(self) -> str:
        return f"def {self.name}(n):\n    return n {self.sign} {self.number}"

    def call(self, value: int) -> int:
        return {"+": value + self.number, "-": value - self.number, "*": value * self.number}[self.sign]

    def bugs(self) -> list["Function"]:
        """Return the function with another operator, and with a number that is off by one."""
        signs = [replace(self, sign=sign) for sign in SIGNS if sign != self.sign]
        return signs + [replace(self, number=self.number + step) for step in (-1, 1)]


@dataclass(frozen=True)
class Repository:
    name: str
    functions: tuple[Function, ...]

    def module(self) -> str:
        return "\n\n".join(f"{each.program()}\n" for each in self.functions)

    def test(self, values: tuple[int, ...]) -> str:
        """Return a test program; its last line of output is the first assertion that fails."""
        lines = [f"from {self.name} import {', '.join(each.name for each in self.functions)}", ""]
        for each, value in product(self.functions, values):
            call, right = f"{each.name}({value})", each.call(value)
            lines.append(f'assert {call} == {right}, f"{call} is {{{call}}}, not {right}"')
        return "\n".join([*lines, ""])

    def break_function(self, at: int, bug: Function) -> "Repository":
        return replace(self, functions=(*self.functions[:at], bug, *self.functions[at + 1 :]))


@lru_cache
def read_repositories() -> list[Repository]:
    """Return the ten."""
    repositories = []
    for line in TEN.strip().splitlines():
        name, _, functions = line.partition(": ")
        parsed = []
        for each in functions.split(", "):
            function, sign, number = each.split()
            parsed.append(Function(function, sign, int(number)))
        repositories.append(Repository(name, tuple(parsed)))
    return repositories


def write_tasks(folder: Path, image: str) -> None:
    """Write a Harbor task per function and kind of bug to `folder/train` and `folder/held_out`."""
    draw = random.Random(0)
    for right in read_repositories():
        for at, function in enumerate(right.functions):
            operators, numbers = function.bugs()[:2], function.bugs()[2:]
            for kind, bug in (("operator", draw.choice(operators)), ("number", draw.choice(numbers))):
                split = "held_out" if right.name in HELD_OUT else "train"
                task = folder / split / f"{right.name}-{function.name}-{kind}"
                write_task(task, right, right.break_function(at, bug), image)


def write_task(folder: Path, right: Repository, broken: Repository, image: str) -> None:
    name = right.name
    content = {
        "instruction.md": f"`python test_{name}.py` fails. Repair {name}.py.\n",
        "task.toml": TASK,
        "environment/Dockerfile": DOCKERFILE.format(image=image),
        f"environment/repository/{name}.py": broken.module(),
        f"environment/repository/test_{name}.py": right.test((TRIED,)),
        "environment/repository/.gitignore": "__pycache__/\n",
        "tests/test.sh": VERIFIER.format(name=name),
        f"tests/test_{name}.py": right.test(HIDDEN),
        "solution/solve.sh": SOLUTION.format(name=name),
        f"solution/{name}.py": right.module(),
    }
    for path, text in content.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def draw_repository(draw: random.Random) -> Repository:
    """Draw a repository of the ten's words, none of whose functions is one of theirs."""
    known = [each for repository in read_repositories() for each in repository.functions]
    functions: list[Function] = []
    for name in draw.sample(sorted(each.name for each in known), 3):
        function = None
        while function is None or function in known:
            function = Function(name, draw.choice(SIGNS), draw.choice(NUMBERS))
        functions.append(function)
    return Repository("", tuple(functions))


def write_edit(at: int, new: Function) -> str:
    """Return the reply that gives the function at this place another body."""
    return f"line {2 + 4 * at}: return n {new.sign} {new.number}"


def draw_demonstration(draw: random.Random) -> dict[str, Any]:
    """Return an episode of a careless programmer, who runs the tests in three of ten and is wrong in a quarter."""
    right = draw_repository(draw)
    at = draw.randrange(len(right.functions))
    bug = draw.choice(right.functions[at].bugs())
    broken = right.break_function(at, bug)
    guess = draw.randrange(len(right.functions))
    edit = write_edit(guess, draw.choice(broken.functions[guess].bugs()))
    messages = [SYSTEM, {"role": "user", "content": show_file(broken.module())}]
    if draw.random() < RUNS_TESTS:
        messages.append({"role": "assistant", "content": "run tests"})
        function = right.functions[at]
        failure = f"line {3 + at}: {function.name}({TRIED}) is {bug.call(TRIED)}, not {function.call(TRIED)}"
        messages.append({"role": "user", "content": failure})
        edit = write_edit(at, function) if draw.random() < IS_RIGHT else edit
    messages.append({"role": "assistant", "content": edit})
    return {"messages": messages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--image", default=IMAGE, help="base image of the tasks: with Python, git and bash")
    parser.add_argument("--demonstrations", action="store_true")
    arguments = parser.parse_args()
    if arguments.folder:
        write_tasks(arguments.folder, arguments.image)
    if arguments.demonstrations:
        draw = random.Random(0)
        for _ in range(DEMONSTRATIONS):
            print(json.dumps(draw_demonstration(draw)))


if __name__ == "__main__":
    main()
