"""Parts and keys that installed packages bring, and packages that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from ajet.config import Experiment, load_experiment
from ajet.config.plugins import find_part, find_parts, list_plugins
from ajet.config.schema.extended import PluginKeys
from ajet.run.plugins import show_plugins
from ajet.run.step_observers import StepObservers
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone

KEYS = """
from ajet.config.schema.base import key, section, Section
from ajet.config.schema.extended import PluginKeys


class Lamp(Section):
    watts: int = key(40, "Watts.", ge=1)


class LampKeys(PluginKeys):
    colour: str = key("white", "Colour of the light.")
    lamp: Lamp = section(Lamp, "The lamp.")
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package whose `Plugin` has these arguments, written as Python, and further modules."""

    def made(name: str, arguments: str, **modules: str) -> None:
        folder = tmp_path / name
        for module, text in {"__init__": "", **modules}.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{module}.py").write_text(text)
        head = "from ajet.config.plugin import Command, ConfigKeys, Part, Plugin\n"
        (folder / name / "plugin.py").write_text(f"{head}PLUGIN = Plugin(name='{name}', about='a test', {arguments})\n")
        (folder / f"{name}-1.dist-info").mkdir()
        (folder / f"{name}-1.dist-info" / "entry_points.txt").write_text(
            f"[console_scripts]\nx = y:z\n[ajet.plugins]\n{name} = {name}.plugin:PLUGIN\n"
        )
        monkeypatch.syspath_prepend(str(folder))

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
    ["trackers={'wandb': 'claims.code:Board'}", "commands={'eval': Command('claims.code:run', 'Evaluate.')}"],
)
def test_a_claimed_name_stays_with_its_owner(install: Install, arguments: str) -> None:
    install("claims", arguments)
    (found,) = [each for each in list_plugins() if each.place == "claims.plugin:PLUGIN"]
    assert found.plugin is None and "which the plug-in ajet has" in found.problem
    part = find_part("tracker", "wandb")
    assert part is not None and part.code.startswith("ajet.")


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


def test_a_worker_loads_what_its_driver_listed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("boards2", "trackers={'board': 'boards2.code:Board'}")
    install("lists", "trackers={'list': 'lists.code:List'}")
    monkeypatch.setenv("AJET_PLUGINS", "lists.plugin:PLUGIN")
    assert find_part("tracker", "list") is not None and find_part("tracker", "board") is None
