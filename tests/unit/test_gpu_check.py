"""`make gpu-check`: every place that names CUDA stands in its table, and its checks work where there is no GPU."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def names_cuda(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "cuda":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ("cuda", "nccl"):
            return True
    return False


def places(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Functions, and names that are given a value in a module or class, in which CUDA is named."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found = list(places(node, (*inside, node.name)))
            yield from (one for one in found if "." in one)
            own = [each for each in node.body if isinstance(each, ast.AnnAssign | ast.Assign)]
            if any(names_cuda(each) for each in own):
                yield ".".join((*inside, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if names_cuda(node):
                yield ".".join((*inside, node.name))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside and names_cuda(node):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            assert isinstance(target, ast.Name)
            yield target.id


def test_the_table_names_every_place_that_names_cuda(gpu_check: ModuleType) -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}::{place}"
        for path in (ROOT / "ajet").rglob("*.py")
        for place in places(ast.parse(path.read_text()))
    }
    assert found == set(gpu_check.COVERED)


def test_it_names_checks_that_there_are(gpu_check: ModuleType) -> None:
    there = {check.name for check in gpu_check.checks(Path("runs"), "auto", "m")}
    assert set(gpu_check.COVERED.values()) - {""} <= there


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
    assert all(f"| {name} |" in said for name in ("doctor", "local", "resume", "prove", "export", "lora"))
    assert said.count("| passed |") == 7 and "- ajet/engine/vllm/launch.py::memory" in said
