"""Each name of ours that stands as text is defined: in YAML, shell, entry points, manifests, pages, and as a string."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ajet.config.plugins import list_plugins
from ajet.config.schema.accepted import ACCEPTED, FIXED, MOVED
from ajet.config.schema.base import walk_keys
from ajet.config.schema.extended import config_model
from ajet_testing.dotted_names import find_constants, find_names, is_own_key, resolves
from ajet_testing.packages import find_packages

ROOT = Path(__file__).resolve().parents[2]
PAGES = (".md",)
TEXTS = (*PAGES, ".yaml", ".yml", ".sh", ".toml", ".json", ".txt", ".jinja", ".ini", ".cfg", "")
"""The last: Makefile, Dockerfiles, scripts."""
NOT_OURS = (
    "CHANGELOG.md", # what there was
    "tests/support/toys", "benchmarks/relay", # other packages, found by who puts them on the path
    "tests/recorded_runs", "launcher_record", "constraints", # what other versions and tools wrote
    "ajet/config/references.py", # AgentJet's modules
    "docs/reference/configuration", "docs/public_surface.txt", # generated, with examples of users' files
)  # fmt: skip
CODE = ("scripts", "benchmarks")
OLDER = {"tests.verl_update"}
"""Names in the versions that scripts/same_as compares with."""


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Return the keys and sections of the configuration, also those of AgentJet, renamed references and exports."""
    named = {".".join(path) for path, _, _ in walk_keys(config_model(shipped=True))} | {*ACCEPTED, *MOVED, *FIXED}
    named |= {key.rsplit(".", n)[0] for key in named for n in range(1, key.count(".") + 1)}
    renamed = {name for each in list_plugins() if each.plugin for name in each.plugin.renamed}
    exported = {f"ajet.{name}" for each in list_plugins() if each.plugin for name in each.plugin.exports}
    exported |= {arrow.join(name.rsplit(".", 1)) for name in exported for arrow in ("->", ":")}
    return {f"ajet.{key}" for key in named} | renamed | exported | OLDER


def find_undefined(paths: list[Path], root: Path, keys: set[str]) -> list[str]:
    """Return the place and text of each name in these files that nothing defines."""
    found: list[tuple[Path, int, str]] = []
    for path in paths:
        find = find_constants if path.suffix == ".py" else find_names
        found += [(path, line, name) for line, name in find(path.read_text(encoding="utf-8"), root)]
    keys = keys | {name for path, _, name in found if path.suffix == ".py" and is_own_key(name)}
    return [
        f"{path.relative_to(root).as_posix()}:{line}: {name}"
        for path, line, name in found
        if name not in keys and not resolves(name, path, root, of_readers=path.suffix in PAGES)
    ]


@pytest.mark.slow
def test_every_dotted_name_of_ours_is_defined(keys: set[str]) -> None:
    packages = tuple(folder.relative_to(ROOT).as_posix() for folder in find_packages(ROOT).values())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line for line in tracked.splitlines() if not line.startswith(NOT_OURS) and (ROOT / line).is_file()]
    code = [ROOT / line for line in lines if line.endswith(".py") and line.startswith((*packages, *CODE))]
    texts = [path for line in lines if (path := ROOT / line).suffix in TEXTS]
    assert find_undefined([*code, *texts], ROOT, keys) == []


RIGHT = {
    "conf/a.yaml": "  type: agent.py->Agent\n  judge: ajet.judge->right # ajet.rollout.num_repeat, ${ajet.no.key}\n",
    "conf/agent.py": "class Agent:\n    async def run(self): ...\n",
    "run.sh": "python -m ajet.judge train.jsonl\npython conf/agent.py ajet_toy.code\n",
    "pyproject.toml": '[project.entry-points."ajet.plugins"]\ntoy = "ajet_toy.code:Toy"\n',
    "deploy/Dockerfile": 'CMD ["python", "-m", "ajet.judge"]\n',
    "deploy/pod.yml": 'command: [python, -m, plugins.ajet_toy.code]\n',
    "docs/a.md": "`ajet.judge.Judge.grade`, your `agent.py->Mine`, `from ajet.judge import right`\n",
    "docs/a_zh.md": "用 `train.code` 和 `conf/agent.py->Agent`。\n",
    "ajet/judge.py": 'MODULES = ("ajet.judge", "ajet.judge:right")\n'
    "class Judge:\n    def grade(self): ...\ndef right(): ...\n",
    "plugins/ajet_toy/code.py": "class Toy: ...\n",
    "plugins/ajet_toy/conf.yaml": "user_workflow: ajet_toy.code->Toy\n",
    "train/code.py": "",
    "env/code.py": "",
}  # fmt: skip
WRONG = [
    ("conf/a.yaml", "agent.py->Agent", "agent.py->Agnet"),
    ("conf/a.yaml", "agent.py->Agent", "agnet.py->Agent"),
    ("conf/a.yaml", "ajet.judge->right", "ajet.judge->wrong"),
    ("conf/a.yaml", "ajet.rollout.num_repeat", "ajet.rollout.num_repeats"),
    ("run.sh", "ajet.judge", "ajet.jugde"),
    ("run.sh", "ajet_toy.code", "ajet_toy.cod"),
    ("pyproject.toml", "code:Toy", "code:Boy"),
    ("deploy/Dockerfile", "ajet.judge", "ajet.cli.gone"),
    ("deploy/pod.yml", "ajet_toy.code", "ajet_boy.code"),
    ("docs/a.md", "Judge.grade", "Judge.mark"),
    ("docs/a.md", "from ajet.judge", "from ajet.judges"),
    ("docs/a_zh.md", "train.code", "train.adaptr.code"),
    ("docs/a_zh.md", "agent.py->Agent", "agent.py->Agnet"),
    ("ajet/judge.py", '"ajet.judge",', '"ajet.judge.gone",'),
    ("ajet/judge.py", "judge:right", "judge:gone"),
    ("plugins/ajet_toy/conf.yaml", "code->Toy", "code->Boy"),
]


def test_a_wrong_name_of_each_kind_is_found(keys: set[str], tmp_path: Path) -> None:
    for name, text in RIGHT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keys = keys | {"ajet.plugins"}
    paths = {name: tmp_path / name for name in RIGHT}
    assert find_undefined(list(paths.values()), tmp_path, keys) == []
    for name, right, wrong in WRONG:
        assert right in RIGHT[name]
        paths[name].write_text(RIGHT[name].replace(right, wrong))
        assert len(find_undefined([paths[name]], tmp_path, keys)) == 1, (name, wrong)
        paths[name].write_text(RIGHT[name])
