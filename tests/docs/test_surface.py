"""The public surface is one text, and a change of it is shown and refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from scripts.reference import __main__ as reference
from scripts.reference.surface import FILE, compare_surface
from scripts.reference.surface.signatures import describe

RECORDED = reference.ROOT / FILE
IN_A_BARE_PYTHON = """
import sys
from pathlib import Path

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "torch", "transformers", "datasets", "ray", "verl", "trinity", "vllm", "trl", "aworld", "agentscope",
            "langchain", "langchain_openai", "anthropic", "mcp", "pandas", "matplotlib", "pymongo", "wandb", "mlflow",
            "swanlab", "reasoning_gym", "peft", "gguf", "math_verify", "pypdf",
        }:
            raise ImportError(name)

sys.meta_path.insert(0, Block())
from scripts.reference.surface import describe_surface
sys.stdout.reconfigure(encoding="utf-8")
sys.stdout.write(describe_surface(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_surface_needs_no_extra_and_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_BARE_PYTHON, str(reference.ROOT)],
        cwd=reference.ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == RECORDED.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "ajet.record.read_status(folder: Path) -> dict[str, Any] | None",
        "ajet.client.Client.begin(",
        "ajet.tune(*, agent: ",
        "ajet.Task.main_query: str = ''",
        "ajet eval --repeat K: integer, min 1 = null",
        "ajet.rollout.num_repeat: integer, at least 1 = 4",
        "ajet.task_judge.scorers[].weight: number = 1.0",
        "train/reward",
        "OPENAI_API_KEY",
        "AJET_CACHE",
        "THINK_LLM_MODEL_NAME",
        "75: ",
        "POST /episodes/{name}/finish",
        "openapi POST /episodes takes Open",
        "POST /v1/chat/completions field tools",
    ],
)
def test_each_kind_of_item_is_there(line):
    assert f"\n{line}" in RECORDED.read_text(encoding="utf-8")


def test_each_item_stands_once_and_sorted():
    for section in RECORDED.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, *items = section.strip().splitlines()
        assert items == sorted(set(items)), title
        assert len(items) > 1, title


def test_check_shows_a_lost_item_and_what_to_do(monkeypatch, capsys):
    lost = "ajet.record.read_status(folder: Path) -> dict[str, Any] | None\n"
    text = RECORDED.read_text(encoding="utf-8").replace(lost, "")
    monkeypatch.setattr(reference, "build_files", lambda: {RECORDED: text})
    assert reference.main(["--check"]) == 1
    printed = capsys.readouterr().out
    assert f"\n-{lost}" in printed and "Python: ajet.record" in printed
    assert "python -m scripts.reference" in printed


def test_equal_surfaces_have_no_difference():
    text = RECORDED.read_text(encoding="utf-8")
    assert compare_surface(text, text) == ""


@dataclasses.dataclass
class Base:
    kept: int
    _own: int = 0

    def play(self, *tasks: str, once: bool = True) -> list[str]: ...


class Described(Base):
    limit: float = 2.5

    def __init__(self, address: str, /, *, key: str | None = None) -> None:
        self.address, self._key = address, key

    @property
    def size(self) -> int: ...

    @classmethod
    def of(cls, text: str) -> Described: ...

    async def call(self, request: dict[str, int]) -> int: ...

    def __enter__(self) -> Described: ...

    def _hidden(self) -> None: ...


def test_a_class_is_told_by_all_its_public_members():
    assert sorted(describe("x.Described", Described)) == [
        "x.Described  [class]",
        "x.Described(address: str, /, *, key: str | None = None)",
        "x.Described.__enter__() -> Described",
        "x.Described.address",
        "x.Described.call(request: dict[str, int]) -> int  [async]",
        "x.Described.kept: int",
        "x.Described.limit: float = 2.5",
        "x.Described.of(text: str) -> Described  [class method]",
        "x.Described.play(*tasks: str, once: bool = True) -> list[str]",
        "x.Described.size: int  [read only]",
    ]


def test_an_exception_says_what_it_can_be_caught_as():
    class LostError(LookupError):
        """An error."""

    assert list(describe("x.LostError", LostError)) == ["x.LostError  [class of LookupError]"]
