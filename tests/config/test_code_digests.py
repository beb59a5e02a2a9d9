"""What of a user's files counts as the code of a run, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ajet.config import Experiment
from ajet.config.code_digests import digest_code, digest_judge, list_changed_files

AGENT = """
from pathlib import Path

import helpers
from pkg.scoring import score

SYSTEM = (Path(__file__).parent / "prompts" / "system.md").read_text()
TABLE = {}
TABLE["a"] = 1


def agent(task, tuner):
    from late import z

    return helpers.ask(SYSTEM, TABLE, z)


def reward(task, output):
    return score(output)


def unrelated():
    return 1


if __name__ == "__main__":
    print(agent(1, 2))
"""
FILES = {
    "agent.py": AGENT,
    "helpers.py": "import deep\n\ndef ask(*given):\n    return deep.x\n",
    "deep.py": "x = 1\n",
    "late.py": "z = 1\n",
    "pkg/__init__.py": "",
    "pkg/scoring.py": "def score(x):\n    return inner(x)\n\ndef inner(x):\n    return 1\n\ndef other():\n    pass\n",
    "prompts/system.md": "Be brief.\n",
    "mine.txt": "own section\n",
    "tools.py": "print(1)\n",
    "beside.py": "x = 1\n",
}
WORKFLOW, JUDGE = "ajet.rollout.user_workflow", "ajet.task_judge.judge_protocol"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def experiment(folder: Path, workflow: str = "agent.py->agent", judge: str | None = "agent.py->reward") -> Experiment:
    ajet = {
        "backbone": "local",
        "model": {"path": "embedded:tiny-tools"},
        "rollout": {"user_workflow": workflow},
        "task_judge": {"judge_protocol": judge},
        "environment": {"use": "{python} tools.py"},
    }
    return Experiment.from_dict({"ajet": ajet, "mine": {"prompt": "mine.txt"}}, base=folder)


@pytest.mark.parametrize(
    ("file", "then", "now", "keys"),
    [
        ("agent.py", "helpers.ask(SYSTEM", "helpers.ask(SYSTEM + '!'", [WORKFLOW]),
        ("agent.py", "score(output)", "-score(output)", [JUDGE]),
        ("agent.py", 'TABLE["a"] = 1', 'TABLE["a"] = 2', [WORKFLOW]),
        ("deep.py", "1", "2", [WORKFLOW]),
        ("late.py", "1", "2", [WORKFLOW]),
        ("pkg/scoring.py", "return 1", "return 2", [JUDGE]),
        ("prompts/system.md", "brief", "long", [WORKFLOW]),
        ("tools.py", "1", "2", ["ajet.environment.use"]),
        ("mine.txt", "own", "another", ["mine.prompt"]),
        ("agent.py", "def reward(task, output):\n", "def reward(task, output):\n    # why\n\n", []),
        ("agent.py", "def agent(task, tuner):", "def agent(\n    task,\n    tuner,\n):", []),
        ("agent.py", "print(agent(1, 2))", "print(agent(3, 4))", []),
        ("agent.py", "return 1", "return 2", []),
        ("pkg/scoring.py", "pass", "return 3", []),
        ("beside.py", "1", "2", []),
    ],
)
def test_only_reached_code_counts(project: Path, file: str, then: str, now: str, keys: list[str]) -> None:
    before = digest_code(experiment(project))
    text = (project / file).read_text()
    assert then in text
    (project / file).write_text(text.replace(then, now))
    assert list_changed_files(before, digest_code(experiment(project))) == ({file: keys} if keys else {})


@pytest.mark.parametrize(
    "agent",
    [
        "from helpers import *\n\ndef agent(task, tuner):\n    return ask()\n",
        "import helpers\nglobals()['agent'] = helpers.ask\nagent = agent\n",
        "from pkg import chosen as agent\n",
        "from pkg.more import chosen\n\nclass Base:\n    ask = staticmethod(chosen)\n\nclass agent(Base):\n    pass\n",
        "import pkg.more\n\ndef agent(task, tuner):\n    return pkg.more.chosen()\n",
        "def decorated(f):\n    import helpers\n    return helpers.ask(f)\n\n@decorated\ndef agent(task, tuner): ...\n",
        "try:\n    import helpers\nexcept ImportError:\n    helpers = None\nagent = lambda *given: helpers.ask()\n",
    ],
)
def test_other_ways_to_reach_a_module_are_followed(project: Path, agent: str) -> None:
    (project / "agent.py").write_text(agent)
    (project / "pkg/__init__.py").write_text("from .more import chosen\n")
    (project / "pkg/more.py").write_text("from helpers import ask as chosen\n")
    before = digest_code(experiment(project, judge=None))
    (project / "deep.py").write_text("x = 2\n")
    assert list_changed_files(before, digest_code(experiment(project, judge=None))) == {"deep.py": [WORKFLOW]}


def test_a_package_installed_from_a_folder_is_followed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = project.parent / f"{project.name}-src" / "mine_of_this_test"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "agents.py").write_text("def agent(task, tuner):\n    return 1\n")
    monkeypatch.syspath_prepend(str(source.parent))
    before = digest_code(experiment(project, "mine_of_this_test.agents->agent"))
    (source / "agents.py").write_text("def agent(task, tuner):\n    return 2\n")
    changed = list_changed_files(before, digest_code(experiment(project, "mine_of_this_test.agents->agent")))
    assert [Path(file).name for file in changed] == ["agents.py"] and "mine_of_this_test.agents" not in sys.modules


@pytest.mark.parametrize(
    ("then", "now", "counts"),
    [("steps=2", "steps=40", False), ("return 1.0", "return 2.0", True), ('"a"', '"b"', True)],
)
def test_of_a_script_only_agent_and_reward_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, now: str, counts: bool
) -> None:
    script = (
        'import ajet\n\nPROMPT = "a"\n\ndef agent(task, tuner):\n    return PROMPT\n\n'
        "def reward(task, output):\n    return 1.0\n\nresult = ajet.tune(agent=agent, reward=reward, steps=2)\n"
    )
    program = ModuleType("__main__")
    program.__file__ = str(tmp_path / "run.py")
    monkeypatch.setitem(sys.modules, "__main__", program)
    found = []
    for text in (script, script.replace(then, now)):
        (tmp_path / "run.py").write_text(text)
        (tmp_path / "tools.py").write_text("")
        found.append(digest_code(experiment(tmp_path, "__main__->agent", "__main__->reward")))
    assert set(list_changed_files(*found)) == ({"run.py"} if counts else set())


def test_of_a_notebook_the_last_definition_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ModuleType("__main__")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", program)
    cells = ["%pip install x\nP = 1", "def agent(task, tuner):\n    return P", "print(1)"]
    found = []
    for more in ([], ["def agent(task, tuner):\n    return P"], ["def agent(task, tuner):\n    return -P"]):
        cells += more
        vars(program)["In"] = cells
        found.append(digest_code(experiment(tmp_path, "__main__->agent", None)))
    assert not list_changed_files(found[0], found[1]) and set(list_changed_files(found[1], found[2])) == {"__main__"}


def test_a_file_that_does_not_parse_is_left_to_its_import(project: Path) -> None:
    (project / "agent.py").write_text("def agent(:\n")
    assert WORKFLOW not in digest_code(experiment(project))


def test_without_a_judge_the_workflow_is_what_scores(project: Path) -> None:
    (project / "scores.py").write_text(FILES["agent.py"])
    judged, alone = (experiment(project, judge=judge) for judge in ("scores.py->reward", None))
    before = [digest_judge(each, digest_code(each)) for each in (judged, alone)]
    (project / "agent.py").write_text(AGENT.replace("SYSTEM,", "SYSTEM * 2,"))
    after = [digest_judge(each, digest_code(each)) for each in (judged, alone)]
    assert before[0] == after[0] and before[1] != after[1]


@pytest.mark.parametrize("prompt", ["答" * 300 + ": 案", "Say: yes", " :x", "It's \"odd: text", "~nobody: x", "a\0.md"])
def test_prose_in_the_configuration_names_no_code(project: Path, prompt: str) -> None:
    (project / "agent.py").write_text(f"TEXT = {'问' * 190 + '.md'!r}\n\ndef agent(task, tuner):\n    return TEXT\n")
    tree = {"rollout": {"user_workflow": "agent.py->agent"}, "model": {"path": "embedded:tiny-tools"}}
    found = digest_code(Experiment.from_dict({"ajet": tree, "mine": {"prompt": prompt}}, base=project))
    assert [*found] == [WORKFLOW]
