"""References to users' classes: every form, from anywhere, with each file's own neighbours, and their errors."""

import os
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from ajet.config import resolve_reference
from ajet.schema.errors import UnresolvedReferenceError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write(tmp_path / "p" / "workflow.py", "class A: where = 'beside'\nclass B: ...\nvalue = 3\ndef function(): ...\n")
    write(tmp_path / "p" / "dir" / "file.py", "class A: where = 'dir'\n")
    write(tmp_path / "p" / "pkg" / "__init__.py", "")
    write(tmp_path / "p" / "pkg" / "module.py", "from .inner import A\nfrom pkg import inner as again\n")
    write(tmp_path / "p" / "pkg" / "inner.py", "class A: where = 'pkg'\n")
    return tmp_path / "p"


@pytest.mark.parametrize(
    ("reference", "where"),
    [
        ("workflow.py->A", "beside"),
        (" workflow.py -> A ", "beside"),
        ("workflow->A", "beside"),
        ("workflow:A", "beside"),
        ("workflow.py:A", "beside"),
        ("dir/file.py->A", "dir"),
        ("./dir/file.py->A", "dir"),
        ("dir.file->A", "dir"),
        ("pkg.module->A", "pkg"),
        ("pkg.module:A", "pkg"),
        ("pkg/module.py->A", "pkg"),
    ],
)
def test_every_form(base, reference, where):
    assert resolve_reference(reference, base=base).where == where


def test_absolute_paths_and_the_working_directory_after_the_yamls_folder(base, tmp_path, monkeypatch):
    assert resolve_reference(f"{base / 'workflow.py'}->A", base=tmp_path).where == "beside"
    here = tmp_path / "cwd"
    write(here / "workflow.py", "class A: where = 'cwd'\n")
    write(here / "only_here.py", "class C: where = 'cwd'\n")
    monkeypatch.chdir(here)
    assert resolve_reference("workflow.py->A", base=base).where == "beside"
    assert resolve_reference("only_here.py->C", base=base).where == "cwd"
    assert resolve_reference("only_here->C", base=base).where == "cwd"


def test_installed_modules_and_shipped_tutorials(base, monkeypatch):
    monkeypatch.chdir("/")
    from ajet.schema.task import Task

    assert resolve_reference("ajet.schema.task->Task", base=base) is Task
    assert resolve_reference("collections:OrderedDict", base=base).__name__ == "OrderedDict"
    reader = resolve_reference("tutorial.quickstart.mails->Mails", base=base)
    assert reader.__name__ == "Mails" and reader is resolve_reference("tutorial/quickstart/mails.py->Mails", base=base)


def test_two_files_of_one_name_are_two_classes_and_one_file_is_one_class(base, tmp_path):
    write(tmp_path / "q" / "workflow.py", "class A: where = 'other'\n")
    mine, other = (
        resolve_reference("workflow.py->A", base=base),
        resolve_reference("workflow.py->A", base=tmp_path / "q"),
    )
    assert (mine.where, other.where) == ("beside", "other")
    assert resolve_reference("workflow.py->A", base=base) is mine
    assert resolve_reference(f"{base}/dir/../workflow.py->A", base=tmp_path) is mine
    assert mine.__module__ != other.__module__
    for one, two in (("dir/file.py->A", "dir.file:A"), ("pkg/module.py->A", "pkg.module->A")):
        assert resolve_reference(one, base=base) is resolve_reference(two, base=base)


HELPED = """
import helpers
from helpers import NAME
from helpers.deep import more
import helpers.deep as deep

class A:
    name, deep, same = NAME, more.NAME, deep.more is more
    def later(self):
        import helpers
        from late import NAME
        return helpers.NAME, NAME
"""


def test_files_import_their_own_neighbours_now_and_later_without_leaking(tmp_path):
    before_path, before = list(sys.path), set(sys.modules)
    found = {}
    for name in ("one", "two"):
        folder = tmp_path / name
        write(folder / "workflow.py", HELPED)
        write(folder / "helpers" / "__init__.py", f"NAME = {name!r}\n")
        write(folder / "helpers" / "deep" / "__init__.py", "")
        write(folder / "helpers" / "deep" / "more.py", "from helpers import NAME\n")
        write(folder / "late.py", f"NAME = 'late {name}'\n")
        found[name] = resolve_reference("workflow.py->A", base=folder)
    for name, cls in found.items():
        assert (cls.name, cls.deep, cls.same) == (name, name, True)
        answers = []
        thread = threading.Thread(target=lambda cls=cls, answers=answers: answers.append(cls().later()))
        thread.start()
        thread.join()
        assert answers == [(name, f"late {name}")]
    assert sys.path == before_path
    assert not {"helpers", "late", "workflow"} & (set(sys.modules) - before)


def test_a_neighbour_named_like_a_library_is_the_users_alone(tmp_path):
    write(tmp_path / "yaml.py", "class Mine: ...\n")
    write(tmp_path / "datasets" / "rows.jsonl", "{}")
    write(tmp_path / "workflow.py", "import yaml, json.decoder\nimport importlib.util\nclass A: mine = yaml.Mine\n")
    write(tmp_path / "uses_folder.py", "import importlib.util\nimport loguru\nclass A: library = loguru.logger\n")
    write(tmp_path / "loguru" / "notes.txt", "no module")
    resolve_reference("workflow.py->A", base=tmp_path)
    import yaml
    from loguru import logger

    assert hasattr(yaml, "safe_load")
    assert resolve_reference("uses_folder.py->A", base=tmp_path).library is logger


def test_files_elsewhere_see_the_yamls_folder_too_and_share_its_modules(tmp_path):
    write(tmp_path / "shared.py", "class Shared: ...\n")
    write(tmp_path / "workflow.py", "from shared import Shared\nclass A: shared = Shared\n")
    write(tmp_path / "dir" / "judge.py", "from shared import Shared\nclass A: shared = Shared\n")
    one, two = (resolve_reference(f"{name}->A", base=tmp_path) for name in ("workflow.py", "dir/judge.py"))
    assert one.shared is two.shared


def test_ajet_itself_is_never_loaded_twice(tmp_path, monkeypatch):
    import ajet

    root = Path(ajet.__file__).parents[1]
    monkeypatch.chdir(root)
    write(
        tmp_path / "workflow.py",
        "import ajet.schema.task as t\nfrom ajet import Task\nclass A: task, again = Task, t.Task\n",
    )
    from ajet.schema.task import Task

    found = resolve_reference("workflow.py->A", base=tmp_path)
    assert found.task is Task and found.again is Task
    assert resolve_reference("ajet.schema.task->Task", base=root) is Task


def test_pydantic_models_with_postponed_annotations_work(tmp_path):
    write(
        tmp_path / "workflow.py",
        """
        from __future__ import annotations
        import dataclasses
        from pydantic import BaseModel
        from names import Inner
        class A(BaseModel):
            inner: Inner
        @dataclasses.dataclass
        class B:
            inner: Inner
        """,
    )
    write(tmp_path / "names.py", "from pydantic import BaseModel\nclass Inner(BaseModel):\n    x: int\n")
    assert resolve_reference("workflow.py->A", base=tmp_path)(inner={"x": 1}).inner.x == 1


def error_of(base: Path, reference: str, **more) -> UnresolvedReferenceError:
    with pytest.raises(UnresolvedReferenceError) as caught:
        resolve_reference(reference, base=base, key="ajet.rollout.user_workflow", **more)
    assert "ajet.rollout.user_workflow" in caught.value.what
    return caught.value


@pytest.mark.parametrize("reference", ["workflow.py", "workflow.py->", "->A", "", "workflow.py->A B", "a b.c->A"])
def test_what_is_no_reference(base, reference):
    assert "workflow.py->Class" in error_of(base, reference).expected


def test_a_missing_file_names_where_it_looked_and_a_similar_one(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = error_of(base, "workfow.py->A")
    assert str(base / "workfow.py") in error.where and str(tmp_path / "workfow.py") in error.where
    assert "workflow.py" in error.do
    error = error_of(base, "no.such.module->A")
    assert "relative to the YAML's folder" in error.do
    assert "relative to the working directory" in error_of(tmp_path, "no_such.py->A").do
    assert str(base / "no" / "such" / "module.py") in error.where and "installed modules" in error.where


def test_a_missing_class_names_the_nearest_without_running_the_file(base):
    write(base / "side_effect.py", "raise SystemExit('ran')\nclass MathAgentWorkflow: ...\n")
    error = error_of(base, "side_effect.py->MathAgentWorkflw")
    assert "MathAgentWorkflow" in error.expected and "side_effect.py->MathAgentWorkflow" in error.do
    assert error.where == str(base / "side_effect.py")
    assert "one of A, B" in error_of(base, "workflow.py->Zebra").expected


def test_functions_are_named_too_and_only_the_name_is_mended(base):
    write(base / "reward.py", "def rewards(task, output): ...\ndef _hidden(): ...\nclass Judge: ...\n")
    assert error_of(base, "reward.py->reward").do == "write reward.py->rewards"
    assert error_of(base, "reward.py->zzz").expected == "one of Judge, rewards"
    assert error_of(base, "reward.py").do.endswith(": reward.py->NAME")


def test_what_a_library_raises_is_said_at_the_line_that_led_there(base):
    write(base / "broken.py", "import json\n\nX = json.loads('{')\nclass A: ...\n")
    error = error_of(base, "broken.py->A")
    assert error.where.startswith(f"{base / 'broken.py'}:3, which called ") and "decoder.py:" in error.where


def test_names_that_are_made_when_the_file_runs_resolve(base):
    write(base / "made.py", "globals()['A'] = type('A', (), {})\n")
    assert resolve_reference("made.py->A", base=base).__name__ == "A"
    write(base / "star.py", "from workflow import *\n")
    assert resolve_reference("star.py->A", base=base).where == "beside"
    assert "Zebra" in error_of(base, "star.py->Zebra").what


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("class A:\n  def f(self)\n    pass\n", 2, "is not valid Python"),
        ("import no_such_package_of_anyone\nclass A: ...\n", 1, "imports no_such_package_of_anyone"),
        ("x = 1\ny = x.nothing\nclass A: ...\n", 2, "AttributeError"),
        ("from neighbour import nothing\nclass A: ...\n", 1, "ImportError"),
        ("class A: ...\nraise SystemExit('no licence')\n", 2, "SystemExit: no licence"),
    ],
)
def test_a_file_that_can_not_be_imported_names_the_line(base, text, line, words):
    write(base / "neighbour.py", "")
    write(base / "broken.py", text)
    error = error_of(base, "broken.py->A")
    assert words in error.what and f"{base / 'broken.py'}:{line}" in error.where, str(error)


def test_an_error_in_a_neighbour_names_the_neighbour(base):
    write(base / "bad.py", "1 / 0\n")
    write(base / "uses.py", "import bad\nclass A: ...\n")
    error = error_of(base, "uses.py->A")
    assert "ZeroDivisionError" in error.what and f"{base / 'bad.py'}:1" in error.where
    write(base / "bad.py", "")
    os.utime(base / "bad.py", (1, 1))
    assert resolve_reference("uses.py->A", base=base).__name__ == "A"


def test_a_missing_package_that_an_extra_brings_names_the_extra(base):
    write(base / "agent.py", "import aworld_not_really\nclass A: ...\n")
    assert "install the package" in error_of(base, "agent.py->A").do


def test_the_expected_class(base):
    class Workflow: ...

    assert "is the class A, not a subclass of Workflow" in error_of(base, "workflow.py->A", expect=Workflow).what
    assert "is a int" in error_of(base, "workflow.py->value", expect=Workflow).what
