"""Parts and keys that installed packages bring, and packages that cannot be used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from loguru import logger

import ajet
import ajet.workflow
from ajet.commands.doctor import examine, examine_store
from ajet.commands.episode_panel import find_hint
from ajet.commands.gpu_estimate import find_own_gpu
from ajet.commands.launch import enter_launch_flags
from ajet.commands.plugins import show_plugins
from ajet.commands.services import enter_run_hooks
from ajet.config import Experiment, load_experiment
from ajet.config.idle import find_idle_keys
from ajet.config.plugins import find_first_name, find_part, find_parts, hand_to_workers, list_plugins
from ajet.config.references import resolve_reference
from ajet.config.schema.extended import PluginKeys
from ajet.environment.services.chosen import choose_environment, is_world
from ajet.schema.episode import Failure
from ajet.schema.errors import ConfigError, UnresolvedReferenceError, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse
from ajet.store import Address, check_store, open_reader, open_shared, store_address, write_store_address
from ajet.store.opening import find_store_leftovers
from ajet.task_judge import open_judge
from ajet.task_judge.registry import prepare_judge
from ajet.train.step import StepObservers
from ajet.workflow.resources import Resources, open_sandbox
from ajet_environments.deployment import find_environment_file, read_description
from ajet_environments.deployment.description import prepare_families
from tests.support.plugin_packages import write_plugin

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.record import RunDirectory

KEYS = """
from ajet.config.schema.base import key, section, Section
from ajet.config.schema.extended import PluginKeys


class Lamp(Section):
    watts: int = key(40, "Watts.", ge=1)


class LampKeys(PluginKeys):
    colour: str = key("white", "Colour of the light.")
    lamp: Lamp = section(Lamp, "The lamp.")
"""
DRIVER = """
from pathlib import Path
from ajet.schema.errors import Finding
from ajet.store.opening import StoreLeftovers
from ajet.store.sqlite_driver import SqliteDriver


class ShelfDriver:
    form = "shelf://HOST/DATABASE"
    default = "shelf://here"

    def _place(self, address):
        from ajet.store import Address
        return Address(Path(f"{address.database}.shelf"))

    def open(self, address, opener):
        return SqliteDriver().open(self._place(address), opener)

    def check(self, address, *, made=None):
        SqliteDriver().check(self._place(address), made=made)

    def read(self, address):
        return SqliteDriver().read(self._place(address))

    def survey(self, address):
        return [Finding("shelf", "ok", address.shown)]

    def find_leftovers(self, address, *, remove=False):
        return StoreLeftovers(3, 30)
"""
FAMILY = """
from pathlib import Path
from pydantic import BaseModel, ConfigDict
from ajet_environments.deployment.description import EnvironmentFamily, EnvironmentPart
from ajet_mcp.servers import Server


class Orchard(BaseModel):
    model_config = ConfigDict(extra="forbid")
    trees: list[str]


def list_parts(section, base, where):
    def started(tree):
        return lambda workdir, uid: Server(tree, "stdio", command=(tree,), cwd=workdir)

    return [EnvironmentPart(tree, start=started(tree), off="ill" if tree == "plum" else "") for tree in section.trees]


def prepare(names, say):
    say(*names)
    return ["no ladder"]


FAMILY = EnvironmentFamily(Orchard, list_parts, prepare)
FILE = Path(__file__).with_name("garden.yaml")
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package whose `Plugin` has these arguments, written as Python, and further modules."""

    def made(name: str, arguments: str, **modules: str) -> None:
        monkeypatch.syspath_prepend(str(write_plugin(tmp_path / name, name, arguments, **modules)))

    return made


def load(folder: Path, text: str, *overrides: str) -> Experiment:
    (folder / "x.yaml").write_text(text)
    return load_experiment(folder / "x.yaml", overrides=overrides, exp_dir=folder)


def test_installed_parts_are_found_by_name(install: Install) -> None:
    assert find_part("tracker", "board") is None
    install("boards", "trackers={'board': 'boards.code:Board'}")
    part = find_part("tracker", "board")
    assert part is not None and part.code == "boards.code:Board"
    assert "board" not in find_parts("tracker"), "only those of ajet's distribution"


def test_a_reference_is_no_name() -> None:
    assert find_part("reader", "mine.py->jsonl_dataset_file") is None


def test_keys_of_a_plugin_are_typed_and_checked(install: Install, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path, "ajet: {environment: {colour: red}}")
    install("lamps", "config_keys=(ConfigKeys('environment', 'lamps.keys:LampKeys'),)", keys=KEYS)
    import lamps.keys  # type: ignore[import-not-found]

    experiment = load(tmp_path, "ajet: {environment: {colour: red}}", "environment.lamp.watts=60")
    keys: PluginKeys = lamps.keys.LampKeys.of(experiment.ajet)
    assert (keys.colour, keys.lamp.watts) == ("red", 60)  # type: ignore[attr-defined]
    assert experiment.ajet.environment.use is None, "the kernel's keys are where they were"
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet:\n  environment:\n    lamp: {watts: 0}")
    assert "watts" in error.value.what and error.value.where.endswith("x.yaml:3:19")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet: {environment: {colours: red}}")
    assert "colour" in error.value.do


def test_keys_without_their_plugin_are_a_lookup_error(tmp_path: Path) -> None:
    class Absent(PluginKeys):
        """Of a package that is not installed."""

    with pytest.raises(LookupError):
        Absent.of(load(tmp_path, "ajet: {}").ajet)


def test_two_plugins_with_one_key_are_named(install: Install, tmp_path: Path) -> None:
    for name in ("first", "second"):
        install(name, f"config_keys=(ConfigKeys('environment', '{name}.keys:LampKeys'),)", keys=KEYS)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet: {}")
    assert "ajet.environment.colour" in error.value.what
    assert "first" in error.value.where and "second" in error.value.where


def test_a_broken_plugin_is_named_and_breaks_nothing(install: Install, tmp_path: Path) -> None:
    install("broken", "trackers=1/0")
    assert load(tmp_path, "ajet: {trainer_common: {logger: console}}").ajet.trainer_common.logger == "console"
    (problem,) = [each.problem for each in list_plugins() if each.place == "broken.plugin:PLUGIN"]
    assert "ZeroDivisionError" in problem
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet: {trainer_common: {logger: boards}}")
    assert "broken.plugin" in f"{error.value.expected}"


@pytest.mark.parametrize("code", ["1 / 0", "import no_such_package", "LampKeys = 3", ""])
def test_broken_keys_are_named_and_break_nothing(
    install: Install, tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"dim{len(code)}"
    keys = f"config_keys=(ConfigKeys('rollout', '{name}.keys:LampKeys'),)"
    install(name, f"{keys}, trackers={{'dimmed': '{name}.code:Board'}}", keys=code)
    assert load(tmp_path, "ajet: {seed: 3}").ajet.seed == 3 and find_part("tracker", "dimmed") is not None
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet: {rollout: {colour: red}}")
    assert f"{name}.plugin" in error.value.do and "ajet.rollout" in error.value.do
    assert show_plugins() == 1 and "keys of ajet.rollout" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        "trackers={'wandb': 'claims.code:Board'}",
        "commands={'eval': Command('claims.code:run', 'Evaluate.')}",
        "sandboxes={'landlock': 'claims.code:Maker'}",
        "doctor_checks={'sandbox': 'claims.code:check'}",
        "stores={'file': PluginPart('claims.code:Driver', schemes=('sqlite',))}",
        "exports={'Workflow': 'claims.code:Flow'}",
        "failure_hints={'timeout': 'wait'}",
        "launch_flags={'logview': LaunchFlag('Look.')}",
    ],
)
def test_a_claimed_name_stays_with_its_owner(install: Install, arguments: str) -> None:
    install("claims", arguments)
    (found,) = [each for each in list_plugins() if each.place == "claims.plugin:PLUGIN"]
    assert found.plugin is None and "which the plug-in ajet" in found.problem
    part = find_part("tracker", "wandb")
    assert part is not None and part.code.startswith("ajet.")


def test_a_run_hands_its_plugins_to_its_processes(install: Install, tmp_path: Path) -> None:
    install("boards3", "trackers={'board': 'boards3.code:Board'}")
    code = "from ajet.config.plugins import find_all_parts; print([*find_all_parts('tracker')])"
    with hand_to_workers():
        install("late", "trackers={'late': 'late.code:Late'}")
        folders = os.pathsep.join([str(tmp_path / "boards3"), str(tmp_path / "late")])
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": folders}, capture_output=True, text=True
        )
    assert "board" in done.stdout and "late" not in done.stdout, done.stderr
    assert "AJET_PLUGINS" not in os.environ


def test_a_shared_store_of_a_package_works(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        Address.of("shelf://host/db")
    install("shelves", "stores={'shelf': PluginPart('shelves.code:ShelfDriver', schemes=('shelf',))}", code=DRIVER)
    address = Address.of("shelf://host/db")
    check_store(address)
    assert not [*tmp_path.glob("*.shelf")], "a look makes nothing"
    store = open_shared(address, rolls=True, run="a run")
    assert [lease.order for lease in store.lease(2)] == [0, 1]
    store.disconnect()
    reading = open_reader(address)
    assert reading.run == "a run"
    reading.close()
    assert [finding.text for finding in examine_store("shelf://host/db").sections["store"]] == ["shelf://host/db"]
    write_store_address(tmp_path, address.shown)
    assert find_store_leftovers(tmp_path).count == 3


def test_a_config_names_a_shared_store_of_a_package(install: Install, tmp_path: Path) -> None:
    install("shelves2", "stores={'shelf2': PluginPart('shelves2.code:ShelfDriver', schemes=('shelf2',))}", code=DRIVER)
    experiment = load(
        tmp_path, "ajet:\n  backbone: local\n  store: {type: shelf2, uri: 'shelf2://h', lease_seconds: 9}"
    )
    address = store_address(experiment, tmp_path / "a run")
    assert address is not None and address.shown == "shelf2://h/a_run"
    assert not find_idle_keys(experiment.ajet, experiment.layers), "shared stores read lease_seconds"
    with pytest.raises(ConfigError) as error:
        store_address(load(tmp_path, "ajet: {store: {type: shelf2, uri: 'sqlite:x'}}"), tmp_path)
    assert "shelf" in f"{error.value.expected}"


def test_a_renamed_reference_still_works(install: Install, tmp_path: Path) -> None:
    install("newer", "renamed={'older.board:Board': 'newer.code:NewBoard'}", code="class NewBoard: ...")
    import newer.code  # type: ignore[import-not-found]

    for reference in ("older.board->Board", "older.board:Board", "newer.code:NewBoard"):
        assert resolve_reference(reference, base=tmp_path) is newer.code.NewBoard
    with pytest.raises(UnresolvedReferenceError) as error:
        resolve_reference("older.board->Other", base=tmp_path)
    assert "older.board" in error.value.what


JUDGES = """
class Fixed:
    def __init__(self, reward):
        self.reward = reward

    def compute_reward(self, workflow_task, workflow_output):
        return self.reward


def open_panel(experiment):
    return Fixed(0.25)


def prepare(experiment, run):
    (experiment.base / "prepared").write_text(f"{run}")


def open_last(experiment):
    return Fixed(0.5) if experiment.ajet.seed == 7 else None
"""


def test_judges_of_plugins_decide_and_are_prepared(install: Install, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "ajet:\n  task_judge: {judge_type: pannel}")
    assert "rubrics_auto_grader" in f"{error.value.expected}" and error.value.where.endswith("x.yaml:2:28")
    judges = "judges={'panel': PluginPart('benches.code:open_panel', prepare='benches.code:prepare')}"
    install("benches", f"{judges}, fallback_judges=('benches.code:open_last',)", code=JUDGES)

    def judged(text: str) -> float | None:
        experiment = load(tmp_path, text)
        prepare_judge(experiment)
        task = Task(main_query="q", task_id="t")
        told = WorkflowTask(task=task, task_id="t")
        return asyncio.run(open_judge(experiment).verdict(told, WorkflowOutput(metadata={"final_answer": "a"}))).reward

    assert judged("ajet: {seed: 6}") is None
    assert judged("ajet: {seed: 7}") == 0.5, "nothing else decides"
    assert not (tmp_path / "prepared").exists(), "it is another judge's"
    assert judged("ajet: {seed: 7, task_judge: {judge_type: panel}}") == 0.25
    assert (tmp_path / "prepared").read_text() == "None"
    for name in ("pannel", "mine.py->Panel"):
        with pytest.raises(ConfigError) as error:
            load(tmp_path, f"ajet: {{task_judge: {{judge_type: {name}}}}}")
        assert "panel" in f"{error.value.expected}"


def test_observers_of_plugins_see_each_step(install: Install, tmp_path: Path) -> None:
    code = """
class Counter:
    def __init__(self, settings, words):
        self.seed = settings.seed

    def metrics(self, episodes, step, newest):
        return {"counter/episodes": len(episodes), "counter/seed": self.seed}

    def recomputed(self, episodes, step, backbone):
        return {"counter/step": step}
"""
    settings = load(tmp_path, "ajet: {seed: 7}").ajet
    assert StepObservers(settings, None).metrics([], 1, lambda _: 0) == {}, "those of ajet need a tokenizer"
    install("counts", "step_observers=('counts.no_such:Counter', 'counts.code:Counter')", code=code)
    observers = StepObservers(settings, None)
    assert observers.metrics([], 1, lambda _: 0) == {"counter/episodes": 0, "counter/seed": 7}
    assert observers.recomputed([], 3, cast("Backbone", None)) == {"counter/step": 3}


def test_exported_names_are_found_below_ajet(install: Install) -> None:
    exports = "exports={'Kite': 'kites.code:Kite', 'workflow.Kite': 'kites.code:Kite'}"
    assert not hasattr(ajet, "Kite")
    install("kites", exports, code="class Kite: ...")
    import kites.code  # type: ignore[import-not-found]

    assert ajet.Kite is ajet.workflow.Kite is kites.code.Kite
    assert not hasattr(ajet, "Kites") and not hasattr(ajet.workflow, "AgentJetJob")
    assert "Kite" not in ajet.__all__, "a star import depends on no other package"
    assert {"tune", "CommandWorkflow"} <= {*ajet.__all__} and "CommandWorkflow" in ajet.workflow.__all__


def test_a_family_of_tool_servers_has_a_section(install: Install, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("orchard: {trees: [pear, plum]}")
    with pytest.raises(ConfigError) as error:
        read_description(tmp_path / "x.yaml")
    assert "orchard" in error.value.what and "mcpServers" in error.value.expected
    install(
        "orchards",
        "environment_families={'orchard': 'orchards.code:FAMILY'}, "
        "environment_files={'garden': 'orchards.code:FILE', 'park': 'orchards.code:FILE'}",
        code=FAMILY,
    )
    parts = read_description(tmp_path / "x.yaml").parts
    assert [(part.name, part.family, part.off) for part in parts] == [
        ("pear", "orchard", ""),
        ("plum", "orchard", "ill"),
    ]
    assert parts[0].start is not None and parts[0].start(tmp_path, None).command == ("pear",)
    said: list[str] = []
    assert prepare_families(parts, said.append) == ["no ladder"] and said == ["pear"], "not for those that are off"
    (tmp_path / "y.yaml").write_text("orchard: {trees: [pear], tree: plum}")
    with pytest.raises(ConfigError) as error:
        read_description(tmp_path / "y.yaml")
    assert "orchard.tree" in error.value.what and "trees" in error.value.expected
    (tmp_path / "z.yaml").write_text("orchard:\n")
    with pytest.raises(ConfigError) as error:
        read_description(tmp_path / "z.yaml")
    assert "orchard" in error.value.what and "mcpServers" in error.value.what
    assert (
        find_environment_file("garden").name == "garden.yaml"
        and find_first_name("environment_file", "park") == "garden"
    )


def test_a_misspelled_export_is_corrected(tmp_path: Path) -> None:
    with pytest.raises(UnresolvedReferenceError) as error:
        resolve_reference("ajet.workflow->ComandWorkflow", base=tmp_path)
    assert "ajet.workflow->CommandWorkflow" in error.value.do


def test_hints_on_failures_go_by_kind_and_workflow(install: Install) -> None:
    class Sail:
        """A workflow."""

    class Jib(Sail):
        """Another one."""

    failure = Failure("agent", "calm", "no wind")
    assert "wind" not in find_hint(failure, Jib)
    install("sails", "failure_hints={'calm': 'wait for wind', 'calm of Sail': 'wait for more wind'}")
    assert [find_hint(failure, flow) for flow in (None, int, Jib)] == ["wait for wind"] * 2 + ["wait for more wind"]


MAZE = """
from ajet.environment.services import EnvService
from ajet.environment.services.chosen import ChosenEnvironment

left = []


def serve(use, base):
    return ChosenEnvironment(EnvService("http://127.0.0.1:9", use), {"folder": base.name}, lambda: left.append(use))
"""


def test_worlds_of_plugins_are_used_by_name(install: Install, tmp_path: Path) -> None:
    used = load(tmp_path, "ajet: {environment: {use: 'maze:3'}}")
    assert choose_environment(used) is None and not is_world("maze:3"), "it is left to tools"
    install("mazes", "environments={'maze': 'mazes.code:serve', 'stub': 'mazes.code:serve'}", code=MAZE)
    assert is_world("maze:3") and not is_world("maze") and not is_world("class:Maze") and is_world("maze.py->Maze")
    world = choose_environment(used)
    assert world is not None and world.service.env_type == "maze:3" and world.params == {"folder": tmp_path.name}
    world.close()
    import mazes.code  # type: ignore[import-not-found]

    assert mazes.code.left == ["maze:3"]
    install("older", "environments={'gymnasium': 'older.code:serve'}")
    assert "environment 'gymnasium'" in next(each.problem for each in list_plugins() if "older" in each.place)


HOOKS = """
from contextlib import contextmanager

seen = []


@contextmanager
def reserve(experiment, folder, flags, prefix):
    seen.append((experiment.name, folder.name, list(flags), prefix))
    yield "a lamp"
    seen.append("left")


@contextmanager
def idle(experiment, folder, flags, prefix):
    yield ""
"""


def test_hooks_of_plugins_surround_a_run(install: Install, tmp_path: Path) -> None:
    experiment = load(tmp_path, "ajet: {}")
    hooks = "run_hooks=('lights.no_such:reserve', 'lights.code:reserve', 'lights.code:idle')"
    install("lights", hooks, code=HOOKS)
    import lights.code  # type: ignore[import-not-found]

    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING")
    with pytest.raises(ZeroDivisionError), enter_run_hooks(experiment, tmp_path / "x", prefix="p-") as started:
        assert started == ["a lamp"] and lights.code.seen == [("x", "x", [], "p-")]
        raise ZeroDivisionError
    logger.remove(sink)
    assert [line for line in lines if "lights.no_such" in line]


def test_a_worker_loads_what_its_driver_listed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("boards2", "trackers={'board': 'boards2.code:Board'}")
    install("lists", "trackers={'list': 'lists.code:List'}")
    monkeypatch.setenv("AJET_PLUGINS", "lists.plugin:PLUGIN")
    assert find_part("tracker", "list") is not None and find_part("tracker", "board") is None


BOXES = """
from ajet.schema.errors import Finding
from ajet.schema.sandbox import Limits, Result


class Maker:
    mechanism = "shoe_box"
    limits = Limits()

    @classmethod
    def of(cls, config, base):
        return cls()

    def open(self, environment=None):
        return Box()


class Box:
    mechanism, folder, lost = "shoe_box", "/shoes", ""

    def python(self, code, **options):
        return Result(b"", b"shoes", 1, "exit", 0.0)

    def close(self):
        pass


def check(experiment, model):
    return [Finding("shoes", "note", f"{experiment} {model}")] if model != "none" else []
"""


def test_a_sandbox_of_a_package_works(install: Install, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path, "ajet: {environment: {sandbox: shoe_box}}")
    install("boxes", "sandboxes={'shoe_box': 'boxes.code:Maker'}", code=BOXES)
    experiment = load(tmp_path, "ajet: {environment: {sandbox: shoe_box}}")
    used: list[ToolUse] = []
    assert open_sandbox(experiment, Resources(), used.append, {}).python("1 / 0").stderr == b"shoes"
    assert used[0].arguments == {"mechanism": "shoe_box", "confined": True}


def test_a_check_of_a_package_is_a_section(install: Install, tmp_path: Path) -> None:
    checks = "{'shoes': 'shoes.code:check', 'gone': 'shoes.code:nothing'}"
    install("shoes", f"doctor_checks={checks}", code=BOXES)
    sections = examine("none", None, exp_dir=tmp_path).sections
    assert "shoes" not in sections and sections["gone"][0].state == "warning"
    assert "shoes.code:nothing" in sections["gone"][0].text
    assert examine(None, None, exp_dir=tmp_path).sections["shoes"][0].text == "None None"


BELL = """
from contextlib import contextmanager

@contextmanager
def ring(run):
    run.append("ding")
    try:
        yield
    finally:
        run.append("dong")
"""


def test_flags_of_plugins_are_around_a_run(install: Install) -> None:
    flags = "'bell': LaunchFlag('Ring.', 'bells.code:ring'), 'quiet': LaunchFlag('Wait.', needs='spreads')"
    install("bells", f"launch_flags={{{flags}, 'gone': LaunchFlag('Go.', 'bells.no_such:go')}}", code=BELL)
    rung: list[str] = []
    run = cast("RunDirectory", rung)
    with pytest.raises(KeyError), enter_launch_flags(run, ["bell", "quiet"]):
        assert rung == ["ding"]
        raise KeyError
    assert rung == ["ding", "dong"]
    with pytest.raises(UserError) as error, enter_launch_flags(run, ["bell", "gone"]):
        pass
    assert "--with-gone" in error.value.what and "no_such" in error.value.what
    assert rung == ["ding", "dong"] * 2, "what was entered is left"


PLAIN = """
from ajet.train.runner import Runner
from ajet.config.backbones import Descriptor, KeyAdvice

ADVICE = KeyAdvice(unread={"steps.old": "data.seed"}, switched={"steps.by_rows": {"steps.rows": "data.tokens"}})
PLAIN = Descriptor(
    "plain", "trains elsewhere", can=frozenset({"trains"}), runner="plains.code:PlainRunner",
    roots=("plain", "steps"), advice=ADVICE,
)


class PlainRunner(Runner):
    def name_accelerators(self) -> str | None:
        return "NVIDIA L40S"
"""


def test_a_backbone_advises_on_its_own_keys(install: Install, tmp_path: Path) -> None:
    install("plains", "backbones={'plain': 'plains.code:PLAIN'}", code=PLAIN)
    given = "ajet: {backbone: plain}\nsteps: {old: 1, rows: 2, kept: 3}\n"
    found = {each.name: each.why for each in load(tmp_path, given).list_idle_keys()}
    assert found.keys() == {"steps.old", "steps.rows"}
    assert "data.seed" in found["steps.old"] and "data.tokens" in found["steps.rows"]
    switched = load(tmp_path, f"{given}plain: {{steps: {{by_rows: false}}}}\n")
    assert [each.name for each in switched.list_idle_keys()] == ["steps.old"]


def test_a_runner_names_the_accelerators(install: Install, tmp_path: Path) -> None:
    install("plains", "backbones={'plain': 'plains.code:PLAIN'}", code=PLAIN)
    experiment = load(tmp_path, "ajet: {backbone: plain}")
    assert find_own_gpu(experiment) == "L40S"
    assert find_own_gpu(load(tmp_path, "ajet: {backbone: plain, trainer_common: {device: cpu}}")) is None


def test_plugins_start_once_before_user_code(install: Install, tmp_path: Path) -> None:
    install(
        "starts",
        "start='starts.begin:begin'",
        begin="import sys\n\ndef begin():\n    sys.starts_begun = getattr(sys, 'starts_begun', 0) + 1\n",
    )
    assert [each.problem for each in list_plugins() if each.place == "starts.plugin:PLUGIN"] == [""]
    assert not hasattr(sys, "starts_begun"), "a plug-in that is only listed is not started"
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("import sys\nBEGUN = sys.starts_begun\n")
        assert resolve_reference(f"{name}.py->BEGUN", base=tmp_path) == 1
    del sys.starts_begun  # type: ignore[attr-defined]


def test_a_plugin_that_cannot_start_is_named(install: Install, tmp_path: Path) -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    install("fails", "start='fails.begin:begin'", begin="def begin():\n    raise OSError('no lamp')\n")
    (tmp_path / "three.py").write_text("VALUE = 3\n")
    assert [resolve_reference("three.py->VALUE", base=tmp_path) for _ in range(2)] == [3, 3]
    logger.remove(sink)
    assert [line for line in lines if "fails" in line and "no lamp" in line] == lines[:1]


def test_listing_what_ships_loads_descriptions_alone() -> None:
    """Code of a plug-in costs a run nothing that does not name it."""
    code = "import sys\nfrom ajet.config.plugins import find_commands, find_parts\n"
    code += "find_parts('reader'), find_commands()\n"
    code += "print(*(name for name in sys.modules if name.startswith('ajet_')))\n"
    code += "print(*({'pydantic', 'torch', 'typer', 'loguru'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded, heavy = done.stdout.splitlines()
    assert not heavy and "ajet_aworld.plugin" in loaded.split(), done.stderr
    assert {name.partition(".")[2] for name in loaded.split()} == {"", "plugin"}
