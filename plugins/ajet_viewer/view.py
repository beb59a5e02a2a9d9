"""`ajet view`: serves the viewer, or writes a run into one HTML file. Also starts the viewer of a training run.

Invariant: the viewer is a separate process, so a run pays only for file reads. It listens on loopback by default and
requires the token of the printed address: other users of the machine can reach loopback and read command lines. A run
waits at most `BEGIN_S` and `END_S` for its viewer, and leaves no viewer process.
"""

from __future__ import annotations

import html
import os
import secrets
import select
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ajet.config.programs import build_command
from ajet.config.record_file import has_record_file, list_record_folder
from ajet.record.console import console, print_line
from ajet.record.find_run import newest_run, suggest_run
from ajet.record.held_folder import HeldFolder
from ajet.schema.addresses import is_loopback, list_loopback_hosts
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.gateway.listener import Listener
    from ajet.record import RunDirectory
    from ajet_viewer.app import Views
    from ajet_viewer.episode_page import Spell


# Open a page with a secret address in the person's browser.
# Invariant: the address is in no command line, which other users can read. The browser opens a private file that
# redirects to the address; `close` removes the file, and after a kill the next page does.
LEADS = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>ajet</title>
<p><a href="{address}">The viewer</a></p>
"""


class OpenedPage:
    """Opens the viewer's page in the browser, through a private file with its secret address.

    The constructor raises OSError if the file cannot be written.
    """

    def __init__(self, address: str) -> None:
        """Write the private file that redirects to `address`, and open it in the browser."""
        self._folder = HeldFolder("ajet-page-")
        file = self._folder.path / "viewer.html"
        try:
            file.touch(0o600)
            file.write_text(LEADS.format(address=html.escape(address)), encoding="utf-8")
            webbrowser.open(file.as_uri())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the private file. Idempotent."""
        self._folder.remove()


def open_page(address: str) -> OpenedPage | None:
    """Open the viewer's page in the user's browser.

    Returns:
        None without a desktop or a writable temporary folder; the user can still open the printed address.
    """
    if not has_desktop():
        return None
    try:
        return OpenedPage(address)
    except OSError:
        return None


def has_desktop() -> bool:
    """Return True if output goes to a terminal on a machine with a desktop, where a browser can be opened."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


BEGIN_S = 30.0
"""Seconds to wait until the viewer of a training run prints its address."""
END_S = 5.0
"""Seconds to wait for the end of a terminated viewer before it is killed."""


def open_viewer(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    file: Path | None = None,
    is_attached: bool = False,
) -> int:
    """Serve runs in a browser until interrupted, or write one run to an HTML file. Return the exit code 0.

    Args:
        path: a folder of runs, or a run's folder.
        host: address to listen on.
        port: port to listen on, 0 for any free port.
        browser: True to open a browser on a desktop.
        file: HTML file to write instead of serving, or None.
        is_attached: True for the viewer of a training run, which exits at the end of standard input, together with the
            process that started it.

    Raises:
        UserError: the folder has no run, or the file cannot be written.
    """
    from ajet_viewer.app import Views
    from ajet_viewer.library import Library

    if not path.is_dir():
        raise _make_missing_error(path)
    views = Views(Library.of(path), find_speller)
    if views.library.only is None and not views.library.names():
        if file is not None:
            raise UserError("This folder contains no run.", where=str(path), expected="a run")
        print_line(f"{path} contains no run yet; new runs appear here when they start.")
    if file is None:
        return _serve_views(views, host, port, browser, is_attached)
    return _write_page(views, path, file)


def _make_missing_error(path: Path) -> UserError:
    """Return the error for a path that is no folder, with advice how to find or start a run."""
    expected = "a run folder, or a folder of runs"
    if path.exists():
        return UserError(f"{path.name} is a file, not a run.", where=str(path), expected=expected)
    from ajet.config.experiment import DEFAULT_ROOT

    start_advice = f"`{format_command('--conf', 'FILE.yaml')}` starts a run; --exp-dir selects another folder of runs"
    if path.name == DEFAULT_ROOT:
        message = f"There is no folder {path.name}: no run was started in this folder yet."
        return UserError(message, where=str(path), expected=expected, do=start_advice)
    return UserError(
        f"There is no run or folder named {path.name}.",
        where=str(path),
        expected=expected,
        do=suggest_run(path.name, path.parent) if path.parent.is_dir() else start_advice,
    )


def choose_place(named: str, root: Path) -> Path:
    """Return the folder to show for an argument of `ajet view`.

    It is the newest run with this name, debug runs included, or else the folder with this name.

    Args:
        named: name of a run, or a folder.
        root: folder of all runs.
    """
    newest = newest_run(named, root, holding="status.json")
    path = Path(named)
    return newest or (path if path.is_dir() or (path.exists() and not (root / named).exists()) else root / named)


def _write_page(views: Views, path: Path, file: Path) -> int:
    """Write the only run of the views to an HTML file, and print its size. Raises UserError."""
    from ajet_viewer.export import write_frozen_page

    if views.library.only is None:
        raise UserError(
            "One file can contain one run only, but this folder has several.",
            where=str(path),
            expected="a run",
            do=f"name one of: {', '.join(views.library.names()[:8])}",
        )
    name = views.library.only
    try:
        write_frozen_page(views, name, find_speller(views.library.path(name)), file)
    except OSError as error:
        raise UserError(f"The file cannot be written: {error.strerror}.", where=str(file)) from error
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    print_line(f"{file}: {size}, opens without a network connection")
    return 0


def _serve_views(views: Views, host: str, port: int, browser: bool, is_attached: bool) -> int:
    """Serve the views until the process is interrupted, and print the address with the secret token."""
    from ajet.gateway.limits import admitting
    from ajet.gateway.listener import Listener, listen
    from ajet_viewer.app import build_app

    listener = listen(host, port, name="viewer", where="--host, --port")
    port = listener.getsockname()[1]
    # Another address than loopback may be reached by any host name, so none is refused.
    hosts = list_loopback_hosts(host, port) if is_loopback(host) else frozenset[str]()
    token = secrets.token_urlsafe(16)
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{url_host}:{port}/?token={token}"
    print(f"Viewer: {address}", flush=True)
    if not is_attached:
        console.print("Press Ctrl-C to stop the viewer.", style="dim")
    page = open_page(address) if browser and not is_attached else None
    try:
        server = Listener(admitting(build_app(views, hosts=hosts, key=token)))
        if is_attached:
            threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
        server.run(sockets=[listener])
    finally:
        if page is not None:
            page.close()
    return 0


def _end_with_input(server: Listener) -> None:
    """Stop the server when standard input ends, as it does when the process that started the viewer ends."""
    sys.stdin.buffer.read()
    server.should_exit = True


@dataclass(frozen=True, slots=True)
class ViewerProcess:
    """A viewer started by a training run."""

    process: subprocess.Popen[bytes]
    address: str
    page: OpenedPage | None = None
    """The page opened in the user's browser, or None."""

    def end(self) -> None:
        """Terminate the viewer process, and kill it after `END_S` seconds."""
        if self.page is not None:
            self.page.close()
        _end_process(self.process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, kill it after `END_S` seconds, and close its pipes."""
    for request_end in (process.terminate, process.kill):
        request_end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _read_first_line(pipe: IO[bytes], seconds: float) -> str:
    """Return the first line that a process prints, or what it has printed at its end or after `seconds`."""
    printed, deadline = b"", time.monotonic() + seconds
    while b"\n" not in printed and select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (chunk := os.read(pipe.fileno(), 1 << 12)):
            break
        printed += chunk
    return printed.partition(b"\n")[0].decode(errors="replace").strip()


def start_viewer(run: RunDirectory) -> ViewerProcess | None:
    """Start a viewer process for the run that this process writes, and print its address.

    Returns:
        The viewer, which the caller must end, or None if it did not start.
    """
    from loguru import logger

    command = build_command("ajet.cli.launcher", "view", str(run.path), "--beside-run")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = _read_first_line(process.stdout, BEGIN_S)
    except BaseException:
        _end_process(process)
        raise
    if not line.startswith("Viewer: "):
        _end_process(process)
        logger.warning(
            "--with-logview: the viewer did not start; `{}` shows the reason", format_command("view", run.path)
        )
        return None
    run.status.add_process(process.pid, "viewer")
    print_line(line)
    address = line.removeprefix("Viewer: ")
    return ViewerProcess(process, address, open_page(address))


@contextmanager
def view_run(run: RunDirectory) -> Iterator[None]:
    """Serve a viewer of a run while the block runs.

    On a terminal it stays after a successful run until the user presses Enter.
    """
    viewer = start_viewer(run)
    try:
        yield
        if viewer is not None and sys.stdin.isatty():
            run.close("finished")
            print(
                f"The run has ended; the viewer at {viewer.address} stays until you press Enter. ", end="", flush=True
            )
            with suppress(KeyboardInterrupt):
                # `input` is not used: a Ctrl-C just before its read would have no effect until a line is typed.
                while not select.select([sys.stdin], [], [], 0.5)[0]:
                    pass
    finally:
        if viewer is not None:
            viewer.end()


def find_speller(folder: Path) -> Spell | None:
    """Return a function that gives the text of each of a run's token ids.

    It uses the tokenizer of a checkpoint or of the model on this machine, and never downloads or converts a model.

    Returns:
        None if neither tokenizer can be loaded.
    """
    from ajet.config import read_recorded_tree
    from ajet.engine.model_source import ModelSource, find_local_model
    from ajet.engine.models import load_tokenizer

    checkpoint_folders = [folder / "checkpoints" / name for name in list_record_folder(folder / "checkpoints")]
    folders_with_tokenizer = [step for step in checkpoint_folders if has_record_file(step / "tokenizer.json")]
    tokenizer_folders = folders_with_tokenizer[-1:]
    try:
        settings = read_recorded_tree(folder / "resolved.yaml").get("ajet")
        model_path = (settings.get("model") or {}).get("path") if isinstance(settings, dict) else None
        if isinstance(model_path, str):
            tokenizer_folders += [
                local for local in (find_local_model(model_path, base=folder, weights=False),) if local is not None
            ]
    except (UserError, OSError, AttributeError):
        pass  # a damaged file: the checkpoint's is left
    for model_folder in tokenizer_folders:
        try:
            tokenizer = load_tokenizer(ModelSource(str(model_folder), folder=model_folder))
        except UserError:
            continue
        return lambda ids: spell_tokens(tokenizer, ids)
    return None


# The text of single tokens for display.
# Invariant: concatenated texts equal the decoded ids, except that bytes of incomplete characters are spelled
# <0xNN>. Supports byte-level alphabets (GPT-2: a visible character for each byte), and alphabets with ▁ for a space
# and <0xNN> for single bytes.
def spell_tokens(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token id. An id outside the vocabulary is written as <id N>."""
    # A vocabulary with the token "Ġ" (a space) has GPT-2's byte-level alphabet.
    alphabet = (
        build_byte_alphabet() if tokenizer.convert_tokens_to_ids("Ġ") not in (None, tokenizer.unk_token_id) else None
    )
    added_tokens = tokenizer.added_tokens_decoder
    return [
        _spell_token(tokenizer.convert_ids_to_tokens(token), token, token in added_tokens, alphabet)
        for token in map(int, ids)
    ]


@lru_cache(maxsize=1)
def build_byte_alphabet() -> dict[str, int]:
    """Return the map of GPT-2's byte-level alphabet from a visible character to its byte.

    Printable Latin-1 characters stand for themselves, and the characters from U+0100 on for the other bytes in order.
    """
    printable_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = [byte for byte in range(256) if byte not in printable_bytes]
    return {chr(byte): byte for byte in printable_bytes} | {
        chr(0x100 + index): byte for index, byte in enumerate(other_bytes)
    }


def _spell_token(piece: str | None, token: int, added: bool, alphabet: dict[str, int] | None) -> str:
    """Return the text of one token.

    Args:
        piece: the token as the vocabulary writes it, or None for an unknown id.
        added: True for a token added to the vocabulary, whose text is not encoded.
        alphabet: map from the alphabet's characters to bytes, or None for an alphabet with ▁.
    """
    if piece is None:
        return f"<id {token}>"
    if added:
        return piece
    if alphabet is None:
        return piece.replace("▁", " ")
    if not all(letter in alphabet for letter in piece):
        return piece
    data = bytes(alphabet[letter] for letter in piece)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(_spell_bytes(data))


def _spell_bytes(data: bytes) -> list[str]:
    """Decode bytes as UTF-8, one item per character. Bytes of incomplete characters are written as <0xNN>."""
    # Python writes a byte that is no UTF-8 as the surrogate U+DC00 + byte.
    text = data.decode(errors="surrogateescape")
    return [f"<0x{ord(letter) - 0xDC00:02X}>" if 0xDC80 <= ord(letter) <= 0xDCFF else letter for letter in text]
