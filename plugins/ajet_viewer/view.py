"""`ajet view`: serve the viewer, or freeze a run into a file; and the viewer beside a run.

Invariant: the viewer is a process of its own, so that looking costs the run nothing but the reading of its files; it
listens on loopback unless told otherwise, and answers only who knows the token of the address that it printed: on a
machine of many users, loopback is everybody's, and so is a command line. A run waits for its viewer no longer than
`BEGIN_S` and `END_S`, and leaves none behind.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ajet.config.programs import program
from ajet.config.record_file import has_record_file, list_record_folder
from ajet.record.console import console
from ajet.record.find_run import newest_run, which_runs
from ajet.schema.addresses import is_loopback, loopback_hosts
from ajet.schema.commands import command
from ajet.schema.errors import UserError
from ajet_viewer.browser import OpenedPage, opened_page

if TYPE_CHECKING:
    from ajet.gateway.listener import Listener
    from ajet.record import RunDirectory
    from ajet_viewer.app import Views
    from ajet_viewer.episode_page import Spell

BEGIN_S = 30.0
"""Seconds that a viewer beside a run may take until it says its address."""
END_S = 5.0
"""Seconds that it may take to end as it is asked to."""


def view(
    place: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    file: Path | None = None,
    beside_run: bool = False,
) -> int:
    """Serve the runs in `place` (a folder of runs, or one run) until interrupted, or write `file`. With `beside_run`
    it ends when its standard input does: with the process that started it, however that ends. Raises UserError."""
    from ajet_viewer.app import Views
    from ajet_viewer.library import Library

    if not place.is_dir():
        raise _nothing_at(place)
    views = Views(Library.of(place), spell_for)
    if views.library.only is None and not views.library.names():
        if file is not None:
            raise UserError("There is no run in this folder.", where=str(place), expected="a run")
        console.print(f"There is no run in {place} yet; one that begins there is shown.", markup=False, soft_wrap=True)
    if file is None:
        return _serve(views, host, port, browser, beside_run)
    return _freeze(views, place, file)


def _nothing_at(place: Path) -> UserError:
    expected = "a run directory, or a folder that holds some"
    if place.exists():
        return UserError(f"{place.name} is a file, and no run.", where=str(place), expected=expected)
    from ajet.config.experiment import DEFAULT_ROOT

    begins = f"`{command('--conf', 'FILE.yaml')}` begins a run; --exp-dir names another folder of runs"
    if place.name == DEFAULT_ROOT:
        what = f"There is no {place.name} here: nothing was run in this folder yet."
        return UserError(what, where=str(place), expected=expected, do=begins)
    return UserError(
        f"There is no run or folder named {place.name}.",
        where=str(place),
        expected=expected,
        do=which_runs(place.name, place.parent) if place.parent.is_dir() else begins,
    )


def viewed(named: str, root: Path) -> Path:
    """What `ajet view NAME` shows: the newest run of that name, debug ones too, else the folder."""
    found = newest_run(named, root, holding="status.json")
    place = Path(named)
    return found or (place if place.is_dir() or (place.exists() and not (root / named).exists()) else root / named)


def _freeze(views: Views, place: Path, file: Path) -> int:
    from ajet_viewer.export import write

    if views.library.only is None:
        raise UserError(
            "A file holds one run, and this folder holds several.",
            where=str(place),
            expected="a run",
            do=f"name one of: {', '.join(views.library.names()[:8])}",
        )
    name = views.library.only
    try:
        write(views, name, spell_for(views.library.path(name)), file)
    except OSError as error:
        raise UserError(f"The file cannot be written: {error.strerror}.", where=str(file)) from error
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    console.print(f"{file}: {size}, opens without a network", markup=False, soft_wrap=True)
    return 0


def _serve(views: Views, host: str, port: int, browser: bool, beside_run: bool) -> int:
    from ajet.gateway.limits import admitting
    from ajet.gateway.listener import Listener, listen
    from ajet_viewer.app import build_app

    listener = listen(host, port, name="viewer", where="--host, --port")
    port = listener.getsockname()[1]
    hosts = loopback_hosts(host, port) if is_loopback(host) else frozenset[str]()
    token = secrets.token_urlsafe(16)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/?token={token}"
    print(f"Viewer: {address}", flush=True)
    if not beside_run:
        console.print("Ctrl-C ends it.", style="dim")
    page = opened_page(address) if browser and not beside_run else None
    try:
        server = Listener(admitting(build_app(views, hosts=hosts, key=token)))
        if beside_run:
            threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
        server.run(sockets=[listener])
    finally:
        if page is not None:
            page.close()
    return 0


def _end_with_input(server: Listener) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True


@dataclass(frozen=True, slots=True)
class Beside:
    """A viewer that runs beside a run."""

    process: subprocess.Popen[bytes]
    address: str
    page: OpenedPage | None = None
    """In the person's browser."""

    def end(self) -> None:
        """End it, by force where it does not within `END_S`."""
        if self.page is not None:
            self.page.close()
        _end(self.process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for ask in (process.terminate, process.kill):
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _first_line(pipe: IO[bytes], seconds: float) -> str:
    """The viewer's words until its first line ends, it ends itself, or the time is over."""
    said, until = b"", time.monotonic() + seconds
    while b"\n" not in said and select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (more := os.read(pipe.fileno(), 1 << 12)):
            break
        said += more
    return said.partition(b"\n")[0].decode(errors="replace").strip()


def beside(run: RunDirectory) -> Beside | None:
    """A viewer of a run that this process writes, its address told; the caller ends it. None when it did not start."""
    from loguru import logger

    started = program("ajet.cli.launcher", "view", str(run.path), "--beside-run")
    process = subprocess.Popen(
        started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = _first_line(process.stdout, BEGIN_S)
    except BaseException:
        _end(process)
        raise
    if not line.startswith("Viewer: "):
        _end(process)
        logger.warning("--with-logview: the viewer did not start; `{}` says why", command("view", run.path))
        return None
    run.status.add_process(process.pid, "viewer")
    console.print(line, markup=False, soft_wrap=True)
    address = line.removeprefix("Viewer: ")
    return Beside(process, address, opened_page(address))


@contextmanager
def view_run(run: RunDirectory) -> Iterator[None]:
    """Within the block a viewer of the run beside it. On a terminal it stays, after a run that has ended well and is
    recorded so, until a key ends it."""
    viewer = beside(run)
    try:
        yield
        if viewer is not None and sys.stdin.isatty():
            run.close("finished")
            print(f"The run is over; {viewer.address} stays until you press Enter. ", end="", flush=True)
            with suppress(KeyboardInterrupt):
                while not select.select([sys.stdin], [], [], 0.5)[0]:
                    pass  # a Ctrl-C that came just before `input` had begun to read would wait for a line
    finally:
        if viewer is not None:
            viewer.end()


def spell_for(folder: Path) -> Spell | None:
    """What spells the tokens of a run: its checkpoint's tokenizer, or its model's where that lies on this machine. None
    when neither does, or can be loaded: looking at a record fetches, converts and starts nothing."""
    from ajet.config import recorded_tree
    from ajet.engine.model_source import ModelSource, find_local_model
    from ajet.engine.models import load_tokenizer
    from ajet_viewer.token_text import spell

    steps = [folder / "checkpoints" / name for name in list_record_folder(folder / "checkpoints")]
    saved = [step for step in steps if has_record_file(step / "tokenizer.json")]
    places = saved[-1:]
    try:
        told = recorded_tree(folder / "resolved.yaml").get("ajet")
        path = (told.get("model") or {}).get("path") if isinstance(told, dict) else None
        if isinstance(path, str):
            places += [found for found in (find_local_model(path, base=folder, weights=False),) if found is not None]
    except (UserError, OSError, AttributeError):
        pass  # a damaged file: the checkpoint's is left
    for place in places:
        try:
            tokenizer = load_tokenizer(ModelSource(str(place), folder=place))
        except UserError:
            continue
        return lambda ids: spell(tokenizer, ids)
    return None
