"""`make gpu-check`: every place that only an accelerator shows stands in its table, and its checks work where there is
none."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from ajet.config import load_experiment
from ajet.config.schema.extended import config_model
from ajet_testing.packages import find_packages, list_sources
from ajet_trinity import launch
from ajet_trinity.config import refuse
from ajet_verl.config import ModelLimits, compose_verl_config
from tests.support.verl_fixtures import without_verl

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"
WORDS = {"cuda", "nccl", "npu", "megatron", "sglang"}
ATTRIBUTES = {"cuda", "NCCL", "megatron", "is_megatron"}
FUNCTIONS = {"gpus", "list_gpus", "refuse_busy", "has_nvidia", "MEGATRON_SIZES"}
"""Ours, which ask whether there is a GPU, or say what one alone does."""


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def literals(node: ast.AST) -> set[object]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {each.value for each in parts if isinstance(each, ast.Constant)}


def compares_with_cpu(node: ast.Compare) -> bool:
    """So that what is not one is something else: `== "cpu"`, `!= "cpu"`, `in ("cpu", …)`."""
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        sides = [right] if isinstance(operator, ast.In | ast.NotIn) else [left, right]
        if any("cpu" in literals(side) for side in sides):
            return True
        left = right
    return False


def names_an_accelerator(tree: ast.AST) -> bool:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            return True
        if isinstance(node, ast.Name) and node.id in FUNCTIONS:
            return True
        if isinstance(node, ast.Compare) and compares_with_cpu(node):
            return True
        text = node.value if isinstance(node, ast.Constant) and id(node) not in prose else None
        if isinstance(text, str) and (text in WORDS or "nvidia" in text or "npu-smi" in text):
            return True
    return False


def places(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Functions, classes by what decorates them or what their fields are given, and names that are given a value in a
    module, in which an accelerator is named."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from (one for one in places(node, (*inside, node.name)) if "." in one)
            own = [each.value for each in node.body if isinstance(each, ast.AnnAssign | ast.Assign) and each.value]
            if any(map(names_an_accelerator, [*own, *node.decorator_list])):
                yield ".".join((*inside, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if names_an_accelerator(node):
                yield ".".join((*inside, node.name))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside and names_an_accelerator(node):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            assert isinstance(target, ast.Name)
            yield target.id


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def f(d):\n    if d.type != 'cpu': g()", ["f"]),
        ("def f(d):\n    return d.type == 'cpu'", ["f"]),
        ("def f(d):\n    return d in ('cpu', 'mps')", ["f"]),
        ("def f(d):\n    return 'cpu' in d.split()", []),
        ("class A:\n    def f(self, s):\n        return s == Method.NCCL", ["A.f"]),
        ("class A:\n    def f(self, s):\n        return 'megatron' if s else 'dp'", ["A.f"]),
        ("def f(s):\n    return s.megatron and s.count", ["f"]),
        ("def f():\n    return Path('/dev/nvidiactl').exists()", ["f"]),
        ("def f():\n    'cuda'\n    return min(gpus())", ["f"]),
        ("def f():\n    'cuda'", []),
        ("@register(device=['npu'])\nclass A:\n    pass", ["A"]),
        ("KINDS = {'npu': 1}", ["KINDS"]),
    ],
)
def test_a_place_is_found_by_what_it_names(code: str, found: list[str]) -> None:
    assert list(places(ast.parse(code))) == found


@pytest.mark.slow
def test_the_table_names_every_place_that_only_an_accelerator_shows(gpu_check: ModuleType) -> None:
    sources = [path for package in find_packages(ROOT).values() for path in list_sources(package)]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sources}
    worth_parsing = re.compile(r"cpu|cuda|nccl|\bnpu|megatron|sglang|nvidia|gpus", re.IGNORECASE)
    found = {
        f"{path}::{place}"
        for path, text in texts.items()
        if worth_parsing.search(text)
        for place in places(ast.parse(text))
    }
    assert found == set(gpu_check.COVERED)


def test_what_covers_a_place_is_a_check_or_a_test_that_there_is(gpu_check: ModuleType) -> None:
    there = {check.name for check in gpu_check.checks(Path("runs"), "auto", "m")}
    named = {*gpu_check.COVERED.values(), *gpu_check.KEYS.values()} - {""}
    tests = {name for name in named if "/" in name}
    assert named - tests <= there and all((ROOT / test).is_file() for test in tests)


def keys(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, told in model.model_fields.items():
        inner = told.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", inner


def test_every_key_that_takes_several_gpus_stands_with_the_check_that_sets_it(gpu_check: ModuleType) -> None:
    """TP, PP, CP, EP, Ulysses, and the engines and devices that nothing here can run."""
    of_schema = dict(keys(config_model(shipped=True)))
    split = {key for key in of_schema if key.endswith("parallel_size")}
    values = {f"{key}={value}" for key in of_schema for value in WORDS & set(get_args(of_schema[key]))}
    assert split | values | {"trainer_common.device=npu"} == set(gpu_check.KEYS)
    every = {check.name: check for check in gpu_check.checks(Path("runs"), "auto", "m")}
    for key, name in gpu_check.KEYS.items():
        words = [word for command in every[name].commands for word in command] if name else [key]
        assert any(word.startswith(key) for word in words), f"the check {name} does not set {key}"


@pytest.mark.slow
@without_verl
def test_what_the_checks_train_with_is_configuration_that_there_is(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed to see that a key is spelled right, and that verl and Trinity would take what it comes to on as
    many GPUs as the check asks for."""
    monkeypatch.chdir(ROOT)
    trained = set()
    for check in gpu_check.checks(Path("runs"), "auto", "Qwen/Qwen2.5-0.5B-Instruct"):
        for command in check.commands:
            if "--backbone" in command:
                told = dict(zip(command, command[1:], strict=False))
                overrides = [word for word in command if re.match(r"[a-z_]+[a-z_.]*=", word)]
                name = told["--backbone"]
                found = load_experiment(Path(told["--conf"]), backbone=name, overrides=overrides)
                trained.add((check.name, found.ajet.backbone))
                if name == "verl":
                    config = compose_verl_config(found, model=ModelLimits(), gpu_bytes=80 << 30, device="cuda")
                    assert config["trainer"]["n_gpus_per_node"] == max(check.gpus, 1), check.name
                elif name == "trinity":
                    refuse(found, "cuda")
    assert ("gsm8k", "local") in trained and ("megatron", "verl") in trained and ("trinity", "trinity") in trained


def test_a_check_whose_needs_are_not_there_is_said_and_not_tried(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = gpu_check.Check("a", "b", (), gpu_check.nothing_more, 2, ("no-such-package", "pytest"))
    assert [check.lacks(count) for count in (1, 2)] == ["2 GPUs and no-such-package", "no-such-package"]
    trinity = gpu_check.Check("t", "b", (), gpu_check.nothing_more, 0, (gpu_check.TRINITY,))
    monkeypatch.setattr(launch, "find_python", lambda device: Path("elsewhere"))
    assert trinity.lacks(0) == ""
    said = gpu_check.not_tried({"local", "tests"}, {"a": "2 GPUs"})
    assert "- the check `a`, for want of 2 GPUs" in said
    assert "- plugins/ajet_vllm/launch.py::memory: by `vllm` alone" in said
    assert "- trainer_common.megatron.expert_model_parallel_size: by no check" in said
    assert not any("checkpoint.py::_list_tensors" in line or "refusals.py" in line for line in said)


def test_a_check_that_fails_is_reported(gpu_check: ModuleType, tmp_path: Path) -> None:
    def check(code: str, wrong: str) -> object:
        return gpu_check.Check("a", "b", ((sys.executable, "-c", code),), lambda folder: wrong)

    both = gpu_check.each_of(lambda folder: "", lambda folder: "no steps")
    assert (both(tmp_path), gpu_check.each_of(lambda folder: "")(tmp_path)) == ("no steps", "")
    assert gpu_check.tried(check("print('so')", ""), tmp_path, 60) == ("", ["so"])
    assert gpu_check.tried(check("print('so')", "no steps"), tmp_path, 60) == ("no steps", ["so"])
    assert gpu_check.tried(check("print('oh'); exit(3)", ""), tmp_path, 60)[0].startswith("exit code 3")
    waits = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    assert gpu_check.tried(check(waits, ""), tmp_path, 0.5)[0].startswith("no end after"), "its children end with it"


@pytest.mark.slow
@pytest.mark.extra_slow
def test_its_checks_work_without_one(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = report.read_text()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "no GPU: this shows only that the checks work" in said
    assert all(f"| {name} |" in said for name in ("doctor", "tests", "local", "resume", "prove", "export", "lora"))
    assert said.count("| passed |") == 8 and "- plugins/ajet_vllm/launch.py::memory" in said
    assert "- the check `megatron`, for want of 2 GPUs" in said
