"""The pytest plug-in of this repository's tests: those of the kernel, and those of each plug-in of ours.

It sets what all tests assume (one torch thread, no hub, a plain terminal), says which worker runs what, and registers
what counts costs and what looks for things that are left behind.

Two workers share the tests. What boots Ray or vLLM is one worker's, first of all, so that each is booted once and the
other worker does the rest meanwhile; a file's tests stay together, for they share what the file sets up. Marks say what
boots, and what imports verl. They stand in the test's file, where the process that hands out tests reads them.
"""

import gc
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two busy processes on two cores are many times slower with more
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("COLUMNS", None)  # tables and lines are as wide as tests say, not as a terminal is
os.environ.update(NO_COLOR="1", TERM="dumb")  # as in CI: a test that needs a capable terminal sets its own
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile every file of ours again

import functools
import io
import pickle
import re
import signal
import ssl
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from omegaconf import Container, OmegaConf, _utils, base, grammar_parser
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from yaml.composer import Composer
from yaml.nodes import Node

from ajet.config.other_models import OUTSIDE
from ajet_testing import costs, left_behind

MARKS = pytest.StashKey[dict[str, set[str]]]()
"""The marks of every test that was found, also of those that `-m` leaves out."""
MISSING_FIXTURES = pytest.StashKey[dict[str, set[str]]]()
"""The fixtures that a test names and no conftest above it has: pytest itself says so when the test runs."""
ALL_SLOW = re.compile(r"^pytestmark = .*\bslow\b", re.MULTILINE)
"""In a file whose tests are all slow, or extra slow."""
PATIENCE_S = 120.0
MOST_COMPOSED = 200
"""YAML texts of which a copy is kept."""
BOOTS = "boots"
"""The mark of tests that boot Ray or vLLM."""
ONE_WORKER = {BOOTS, "verl"}
"""Marks of what one worker runs: importing verl takes 13 seconds."""


def pytest_configure(config: pytest.Config) -> None:
    sys.dont_write_bytecode = False  # the variable was there when this process began
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's, for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # commands under test hear their Ctrl-C
    costs.register(config)
    left_behind.register(config)
    # hundreds of configurations are composed, of the same few files and interpolations: parsing is most of the time
    _utils.parse = base.parse = grammar_parser.parse = functools.lru_cache(maxsize=None)(grammar_parser.parse)
    OmegaConf.load = staticmethod(parsed_once(OmegaConf.load))  # type: ignore[assignment, method-assign]
    # a run's YAML is read again by whatever looks at the run: composing it in Python takes 34 ms, a copy 6
    Composer.get_single_node = composed_once(Composer.get_single_node)  # type: ignore[assignment, method-assign]
    # hundreds of clients are made, and each would read all certificates of the web: 50 ms, for servers without TLS
    cached = functools.lru_cache(maxsize=None)(ssl.create_default_context)
    ssl.create_default_context = cached  # type: ignore[assignment]


@pytest.fixture(scope="session")
def bench() -> Iterator[Any]:
    """A vLLM engine, and the model whose weights it is given: one for all tests, which run in one worker."""
    from tests.support.vllm_bench import Bench

    made = Bench()
    yield made
    made.engine.close()


def parsed_once(load: Callable[[Any], Container]) -> Callable[[Any], Container]:
    """OmegaConf's `load` that answers with a copy where it has parsed the same text before."""
    parsed: dict[str, bytes] = {}

    def loaded(source: str | Path | IO[str]) -> Container:
        text = Path(source).read_text(encoding="utf-8") if isinstance(source, (str, Path)) else source.read()
        if text not in parsed:
            parsed[text] = pickle.dumps(load(io.StringIO(text)))
        return pickle.loads(parsed[text])

    return loaded


def composed_once(compose: Callable[[Any], Node | None]) -> Callable[[Any], Node | None]:
    """PyYAML's `get_single_node` that answers with a copy where a loader of this class has composed the text."""
    composed: dict[tuple[type, str], bytes] = {}

    def copied(loader: Any) -> Node | None:
        if loader.stream is not None:  # its text is not known yet
            return compose(loader)
        key = type(loader), loader.buffer
        if key not in composed:
            node = compose(loader)
            if len(composed) >= MOST_COMPOSED:
                composed.clear()
            composed[key] = pickle.dumps(node)
            return node
        copy: Node | None = pickle.loads(composed[key])
        return copy

    return copied


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, files of nothing else are not even imported: half of what `make test-fast` costs
    would be the importing."""
    fast = "not slow" in config.option.markexpr and collection_path.name.startswith("test_")
    return True if fast and ALL_SLOW.search(collection_path.read_text()) else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return FileScheduling(config, log)


class FileScheduling(LoadScopeScheduling):
    """Whatever `--dist` says: a file's tests go to one worker, and those of all files that boot something, or import
    verl, to one."""

    def _split_scope(self, nodeid: str) -> str:
        return find_scope(self.config, nodeid)


def find_scope(config: pytest.Config, nodeid: str) -> str:
    """Return the name of what one worker runs together with this test."""
    file = nodeid.split("::")[0]
    return BOOTS if ONE_WORKER & read_marks(config.rootpath / file) else file


@functools.cache
def read_marks(file: Path) -> frozenset[str]:
    """Return the names of the marks that a file names."""
    return frozenset(re.findall(r"\bmark\.(\w+)", file.read_text(encoding="utf-8")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what boots, then files with slow tests, so that no worker is left with a long one at the end."""
    config.stash[MARKS] = marks = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in items}
    config.stash[MISSING_FIXTURES] = list_missing_fixtures(items)
    written = {file: read_marks(config.rootpath / file) for file in {file_of(item) for item in items}}
    for item in items:
        if unwritten := (ONE_WORKER & marks[item.nodeid]) - written[file_of(item)]:
            raise pytest.UsageError(f"{item.nodeid} is marked {unwritten} elsewhere: write the mark into its file")
    slow = {file_of(item) for item in items if "slow" in marks[item.nodeid]}
    items.sort(key=lambda item: (BOOTS not in written[file_of(item)], file_of(item) not in slow))


def list_missing_fixtures(items: list[pytest.Item]) -> dict[str, set[str]]:
    """Return by test the fixtures that it asks for and that are not there."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    missing = {
        item.nodeid: {*item.fixturenames} - {*item._fixtureinfo.name2fixturedefs, "request"} for item in functions
    }
    return {test: names for test, names in missing.items() if names}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A file whose runs are closed leaves no run's environment to the tests of other files."""
    done = yield
    if nextitem is None or file_of(nextitem) != file_of(item):
        left = [name for name in os.environ if name.startswith(OUTSIDE)]
        for name in left:
            del os.environ[name]
        assert not left, f"{file_of(item)} leaves {left}"
    return done


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nobody looks for garbage while modules are imported, which would be a quarter of what that costs; and what was
    imported by then is none: collections that the code under test asks for leave it alone. What a test asks of a server
    without saying how long it waits has two minutes: httpx's own five seconds pass on a busy machine."""
    gc.disable()
    try:
        return (yield)
    finally:
        if "httpx" in sys.modules:
            usual = sys.modules["httpx"]._config.DEFAULT_TIMEOUT_CONFIG
            usual.connect = usual.read = usual.write = usual.pool = PATIENCE_S
        gc.collect()
        gc.freeze()
        gc.enable()
