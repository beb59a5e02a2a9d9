"""The viewer's address in the person's browser, and the viewer beside a run, which may not start or not end."""

from __future__ import annotations

import gc
import os
import stat
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
from loguru import logger

from ajet.gateway.listener import Listener
from ajet.record import held_folder
from ajet.schema.addresses import list_loopback_hosts
from ajet_viewer import app, view

ADDRESS = "http://127.0.0.1:1234/?token=se-cret&x=1"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What a browser is started with."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr(view, "has_desktop", lambda: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return found


def test_a_browser_is_given_a_file_that_leads_there_and_no_secret(opened: list[str], tmp_path: Path) -> None:
    page = view.open_page(ADDRESS)
    assert page is not None
    (url,) = opened
    assert "se-cret" not in url and url.startswith("file://")
    file = Path(unquote(urlsplit(url).path))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert f'content="0; url={ADDRESS.replace("&", "&amp;")}"' in file.read_text()
    page.close()
    page.close()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_page(opened: list[str], tmp_path: Path) -> None:
    left = view.open_page(ADDRESS)
    assert left is not None and left._folder._lock is not None
    left._folder._lock.release()  # as the kernel does
    held_folder.remove_abandoned_folders.cache_clear()
    page = view.open_page(ADDRESS)
    assert page is not None and [*tmp_path.iterdir()] == [page._folder.path]


def test_where_no_file_can_be_the_address_was_printed_and_that_is_all(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert view.open_page(ADDRESS) is None and not opened


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> Callable[[str], Any]:
    """`start_viewer` with a program of this text in the viewer's place; patience is short."""
    monkeypatch.setattr(view, "END_S", 0.2)
    run: Any = SimpleNamespace(path=Path("run"), status=SimpleNamespace(add_process=lambda pid, role: None))

    def begin(text: str, patience: float) -> Any:
        monkeypatch.setattr(view, "BEGIN_S", patience)
        deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        monkeypatch.setattr(view, "build_command", lambda *given: [sys.executable, "-c", deaf + text])
        return view.start_viewer(run)

    return begin


def children() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "patience"), [("time.sleep(600)", 0.3), ("sys.exit(1)", 60.0), ("print('no', flush=True)", 60.0)]
)
def test_a_viewer_that_does_not_start_is_said_and_leaves_nothing(
    begun: Callable[..., Any], text: str, patience: float
) -> None:
    gc.collect()  # what tests before this one left open
    before, said, descriptors = children(), list[str](), len(os.listdir("/proc/self/fd"))
    sink = logger.add(said.append, format="{message}", level="WARNING")
    began = time.monotonic()
    try:
        assert begun(text, patience) is None
    finally:
        logger.remove(sink)
    assert "the viewer did not start" in said[0] and time.monotonic() - began < 30
    assert not set(children()) - set(before)  # children of earlier tests may end meanwhile
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_viewer_that_does_not_end_is_killed(begun: Callable[..., Any], opened: list[str], tmp_path: Path) -> None:
    before = children()
    beside = begun(f"print('Viewer: {ADDRESS}', flush=True); time.sleep(600)", 60.0)
    assert beside.address == ADDRESS and len(opened) == 1
    beside.end()
    assert children() == before and beside.process.returncode == -9 and not list(tmp_path.iterdir())


def test_a_viewer_anywhere_on_loopback_looks_at_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, frozenset[str]] = {}
    monkeypatch.setattr(app, "build_app", lambda views, *, hosts, key: seen.setdefault("hosts", hosts))
    monkeypatch.setattr(Listener, "run", lambda self, sockets: sockets[0].close())
    view.open_viewer(tmp_path, host="127.0.0.2", browser=False)
    [own] = [host for host in seen["hosts"] if host.startswith("127.0.0.2:")]
    assert seen["hosts"] == list_loopback_hosts("127.0.0.2", int(own.partition(":")[2])) and len(seen["hosts"]) == 4
