"""Mistakes in the reward's code, 31 to 44."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.project import AGENT, YAML

DEBUG = "ajet --conf m.yaml --backbone debug"
HEAD = AGENT[: AGENT.index("def reward")]


def reward(source: str) -> dict[str, str | bytes]:
    """Return the files of a project with this reward and the usual agent."""
    return {"agent.py": HEAD + source}


MISTAKES = (
    Mistake(31, 'the reward is "1.0", a text', "what to return", (DEBUG,),
            shows=("agent.py:8", "'1.0'", "float("), hides=("call it alone",),
            files=reward('def reward(task, output):\n    return "1.0"\n')),
    Mistake(32, "reward(output, task)", "the order to write", (DEBUG,),
            shows=("agent.py", "(task, output)"),
            files=reward('def reward(output, task):\n'
                         '    return float(task.metadata["answer"] in output.metadata["final_answer"])\n')),
    Mistake(33, "the reward is (correct, 0.5), the order of many libraries", "refused, with the order to write",
            (DEBUG,), shows=("agent.py:8", "return 0.5, False", "then: "), hides=("call it alone", "Memory for"),
            files=reward("def reward(task, output):\n    return (False, 0.5)\n")),
    Mistake(34, "rewards are negative", "they are fine", (DEBUG,), code=0, shows=("reward -",),
            files=reward("import random\n\n\ndef reward(task, output):\n    return -1.0 - random.random()\n")),
    Mistake(35, "rewards from 0 to 100", "they are fine", (DEBUG,), code=0, shows=("reward",),
            files=reward("import random\n\n\ndef reward(task, output):\n    return random.randint(0, 100)\n")),
    Mistake(36, '"5" == 5', "the answer is a text and is compared with a number, at this line", (DEBUG,), code=0,
            shows=("agent.py:9", "a number", "boxed"),
            files=reward('def reward(task, output):\n'
                         '    return float(output.metadata["final_answer"] == int(task.metadata["answer"]))\n')),
    Mistake(37, "a dict without a score", "the keys to write", (DEBUG,),
            shows=("agent.py:8", '"score"', "format, note"), hides=("call it alone",),
            files=reward('def reward(task, output):\n    return {"format": 1.0, "note": "good"}\n')),
    Mistake(38, "reward(answer)", "the signature to write", (DEBUG,), shows=("(task, output)",),
            files=reward("def reward(answer):\n    return 1.0\n")),
    Mistake(39, "TRL's reward(completions, answer, **kwargs)", "refused with the signature, or called as TRL does",
            (DEBUG,), code=0, shows=("reward 1",), hides=("reward 5",),
            files=reward("def reward(completions, answer, **kwargs):\n"
                         "    return [float(a in c) for c, a in zip(completions, answer)]\n")),
    Mistake(40, "TRL's reward(prompts, completions, **kwargs)", "refused with the signature, or called as TRL does",
            (DEBUG,), code=0, shows=("reward 9",), hides=("reward 12",),
            files=reward("def reward(prompts, completions, **kwargs):\n"
                         "    return [float(len(c)) for c in completions]\n")),
    Mistake(41, "verl's compute_score as the judge", "it works", (DEBUG,), code=0, shows=("reward",),
            files=reward("def reward(data_source, solution_str, ground_truth, extra_info=None):\n"
                         "    return float(ground_truth in solution_str)\n")),
    Mistake(42, "task.answer in the reward", "the columns of a row are in task.metadata", (DEBUG,),
            shows=("agent.py", "metadata"),
            files=reward("def reward(task, output):\n"
                         '    return float(task.answer in output.metadata["final_answer"])\n')),
    Mistake(43, "output.strip()", "where the answer is", (DEBUG,),
            shows=("agent.py", 'output.metadata["final_answer"]'),
            files=reward('def reward(task, output):\n    return float(output.strip() == task.metadata["answer"])\n')),
    Mistake(44, "the reward never ends", "the key that bounds it and the line at which it stood", (DEBUG,),
            shows=("episode_timeout", "agent.py:", "in reward", "find out why"),
            files={**reward("def reward(task, output):\n    while True:\n        pass\n"),
                   "m.yaml": YAML.replace("num_repeat: 2", "num_repeat: 2, episode_timeout: 5")}),
)  # fmt: skip
