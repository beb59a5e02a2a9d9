"""Parts and keys that installed packages bring, and packages that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ajet.config import Experiment, load_experiment
from ajet.config.idle import idle_keys
from ajet.config.plugins import find_part, find_parts, list_plugins
from ajet.config.references import resolve_reference
from ajet.config.schema.extended import PluginKeys
from ajet.run.doctor import examine_store
from ajet.schema.errors import ConfigError, UnresolvedReference
from ajet.store import Address, look_at_store, note_elsewhere, open_reading, open_shared, store_address
from ajet.store.leftovers import left_in_store

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
from ajet.schema.finding import Finding
from ajet.store.opening import Left
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
        return Left(3, 30)
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


@pytest.mark.parametrize(
    "arguments",
    [
        "trackers={'wandb': 'claims.code:Board'}",
        "commands={'eval': Command('claims.code:run', 'Evaluate.')}",
        "stores={'file': Part('claims.code:Driver', schemes=('sqlite',))}",
    ],
)
def test_a_claimed_name_stays_with_its_owner(install: Install, arguments: str) -> None:
    install("claims", arguments)
    (found,) = [each for each in list_plugins() if each.place == "claims.plugin:PLUGIN"]
    assert found.plugin is None and "which the plug-in ajet has" in found.problem
    part = find_part("tracker", "wandb")
    assert part is not None and part.code.startswith("ajet.")


def test_a_shared_store_of_a_package_works(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        Address.of("shelf://host/db")
    install("shelves", "stores={'shelf': Part('shelves.code:ShelfDriver', schemes=('shelf',))}", code=DRIVER)
    address = Address.of("shelf://host/db")
    look_at_store(address)
    assert not [*tmp_path.glob("*.shelf")], "a look makes nothing"
    store = open_shared(address, rolls=True, run="a run")
    assert [lease.order for lease in store.lease(2)] == [0, 1]
    store.disconnect()
    reading = open_reading(address)
    assert reading.run == "a run"
    reading.close()
    assert [finding.text for finding in examine_store("shelf://host/db").sections["store"]] == ["shelf://host/db"]
    note_elsewhere(tmp_path, address.shown)
    assert left_in_store(tmp_path).count == 3


def test_a_config_names_a_shared_store_of_a_package(install: Install, tmp_path: Path) -> None:
    install("shelves2", "stores={'shelf2': Part('shelves2.code:ShelfDriver', schemes=('shelf2',))}", code=DRIVER)
    experiment = load(
        tmp_path, "ajet:\n  backbone: local\n  store: {type: shelf2, uri: 'shelf2://h', lease_seconds: 9}"
    )
    address = store_address(experiment, tmp_path / "a run")
    assert address is not None and address.shown == "shelf2://h/a_run"
    assert not idle_keys(experiment.ajet, experiment.layers), "shared stores read lease_seconds"
    with pytest.raises(ConfigError) as error:
        store_address(load(tmp_path, "ajet: {store: {type: shelf2, uri: 'sqlite:x'}}"), tmp_path)
    assert "shelf" in f"{error.value.expected}"


def test_a_renamed_reference_still_works(install: Install, tmp_path: Path) -> None:
    install("newer", "renamed={'older.board:Board': 'newer.code:NewBoard'}", code="class NewBoard: ...")
    import newer.code  # type: ignore[import-not-found]

    for reference in ("older.board->Board", "older.board:Board", "newer.code:NewBoard"):
        assert resolve_reference(reference, base=tmp_path) is newer.code.NewBoard
    with pytest.raises(UnresolvedReference) as error:
        resolve_reference("older.board->Other", base=tmp_path)
    assert "older.board" in error.value.what


def test_a_worker_loads_what_its_driver_listed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("boards2", "trackers={'board': 'boards2.code:Board'}")
    install("lists", "trackers={'list': 'lists.code:List'}")
    monkeypatch.setenv("AJET_PLUGINS", "lists.plugin:PLUGIN")
    assert find_part("tracker", "list") is not None and find_part("tracker", "board") is None
