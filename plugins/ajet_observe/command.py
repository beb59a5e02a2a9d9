"""`ajet observe`: a proxy that records a deployed agent's calls to any endpoint as episodes of a run folder.

Invariant: a session's file is deleted only after its episode is on the disk. Sessions left by a killed process of the
same name are continued.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loguru import logger
from rich.text import Text

from ajet.commands.http_server import read_key, serve_until_ended
from ajet.commands.launch import close_with_outcome
from ajet.commands.recording import EpisodeRecording
from ajet.record.console import console, counted, print_line, printable
from ajet.record.status import read_status, recorded_processes
from ajet.rollout.runtime import freeze_start
from ajet.schema.addresses import require_key_or_loopback
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.train.interrupts import Interrupts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory

KEY = "AJET_ADMIN_KEY"
"""Environment variable with the key for feedback, needed if other machines can reach the proxy."""
POLL_S = 1.0
OPEN_FOLDER, LATE_FEEDBACK = "open", "feedback.jsonl"
"""The folder of open sessions, and the file of feedback on ended sessions, in the run folder."""


@dataclass(frozen=True, slots=True)
class ObserveOptions:
    """Flags of the command `ajet observe`, except the run's flags."""

    endpoint: str
    host: str = "127.0.0.1"
    port: int = 0
    idle: float = 1800.0
    token_ids: bool = False
    timeout: float = 600.0
    """Seconds without data after which a call to the endpoint fails."""


def observe(experiment: Experiment, options: ObserveOptions) -> int:
    """Record until Ctrl-C or SIGTERM. After SIGTERM finish open requests and return the exit code 0.

    Raises:
        UserError: The user can correct the cause.
        KeyboardInterrupt: At Ctrl-C.
    """
    from ajet.record import RunDirectory

    endpoint = _parse_endpoint(options.endpoint)
    key = read_key(KEY, do="omit it if only this machine can reach the proxy", or_else="")
    require_key_or_loopback(
        options.host,
        keyed=key is not None,
        name="proxy",
        do=f"set {KEY}; requests with feedback must then contain this key",
    )
    run = RunDirectory.open(experiment, root=experiment.root, kind="serve")
    with close_with_outcome(run):
        interrupts = Interrupts()
        with interrupts.install(), freeze_start():
            _run_proxy(run, options, endpoint, key, interrupts)
    return 0


def _run_proxy(
    run: RunDirectory, options: ObserveOptions, endpoint: str, key: str | None, interrupts: Interrupts
) -> None:
    """Serve the proxy until an interrupt, and record the episode of each session that ends.

    Args:
        wanted: flags of the command.
        endpoint: URL of the endpoint, up to /v1.
        key: key required for feedback, or None.
    """
    from ajet.gateway.listener import listen
    from ajet_observe.relay import ObservingRelay
    from ajet_observe.server import RelayServer
    from ajet_observe.sessions import ObservedSessions

    closed_sessions: deque[tuple[Episode, Path]] = deque()
    closed_count = threading.Semaphore(0)

    def queue_episode(episode: Episode, file: Path) -> None:
        """Queue the episode of an ended session and the session's file, for this process's main thread."""
        closed_sessions.append((episode, file))
        closed_count.release()

    sessions = ObservedSessions(
        run.path / OPEN_FOLDER,
        run.redact,
        queue_episode,
        run.path / LATE_FEEDBACK,
        run.run_id,
        options.idle,
    )
    listening_socket = listen(options.host, options.port, name="proxy", where="--host, --port")
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{listening_socket.getsockname()[1]}"
    if adopted := sessions.adopt(_find_left_sessions(run.path)):
        logger.info("continuing {} of an earlier process", counted(adopted, "session"))
    relay = ObservingRelay(endpoint, sessions, key=key, token_ids=options.token_ids, timeout=options.timeout)
    server = RelayServer(relay, sessions, listening_socket)
    recording = EpisodeRecording(run)
    run.status.set(phase="serving", step=0, url=address)
    _print_address(address, endpoint, run, key)

    def record_next() -> None:
        """Wait up to POLL_S seconds for an ended session, and record its episode."""
        if closed_count.acquire(timeout=POLL_S):
            with interrupts.defer():
                _record_episode(*closed_sessions.popleft(), recording)

    try:
        serve_until_ended(interrupts, record_next, lambda: server.idle)
    finally:
        server.stop()
        while closed_sessions:
            _record_episode(*closed_sessions.popleft(), recording)
        recording.log_metrics(is_last=True)


def _record_episode(episode: Episode, file: Path, recording: EpisodeRecording) -> None:
    """Write an episode to the run folder, delete its session's file, and print a line about it. Sessions without calls
    give no episode."""
    if episode.calls:
        recording.record_missing([episode])
        recording.log_metrics()
    file.unlink(missing_ok=True)
    parts = [counted(len(episode.calls), "call")]
    parts += [f"reward {episode.reward:g}"] if episode.reward is not None else []
    parts += [printable(episode.failure.message[:200])] if episode.failure else []
    print_line(f"{printable(episode.task.task_id)}: {', '.join(parts)}")


def _find_left_sessions(folder: Path) -> list[Path]:
    """Return the open sessions' files in other runs of the same project, whose processes have ended."""
    session_files: list[Path] = []
    for run_folder in sorted(folder.parent.iterdir()):
        files = sorted((run_folder / OPEN_FOLDER).glob("*.jsonl")) if run_folder != folder else []
        if files and not any(process.alive() for process, _ in recorded_processes(read_status(run_folder) or {})):
            session_files += files
    return session_files


def _parse_endpoint(text: str) -> str:
    """Return the endpoint's URL up to /v1. Raises UserError if it is no HTTP URL, or contains a user or a query."""
    # A user or a query may contain a password or a key, so such a URL is not repeated in the error.
    may_hold_secret = "@" in text or "?" in text
    try:
        parts = urlsplit(text)
    except ValueError:  # urlsplit refuses unmatched brackets
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise UserError(
            "The endpoint's URL must not contain a user or a query."
            if may_hold_secret
            else f"{text} is not the URL of an endpoint.",
            where="--endpoint",
            expected="a URL such as http://127.0.0.1:8000/v1",
            do="" if may_hold_secret or "://" in text else f"did you mean http://{text}?",
        )
    url = text.rstrip("/")
    return url if parts.path.strip("/") else f"{url}/v1"


def _print_address(address: str, endpoint: str, run: RunDirectory, key: str | None) -> None:
    """Print the proxy's address, the run folder, and a command that sends feedback."""
    key_header = f' -H "Authorization: Bearer ${KEY}"' if key is not None else ""
    forwarding_text = f" forwards requests to {endpoint} · records in {run.path}"
    console.print(Text.assemble("Observing on ", (f"{address}/v1", "bold"), forwarding_text), soft_wrap=True)
    console.print(
        f"Feedback:  curl -X POST {address}/feedback -H 'content-type: application/json'{key_header} "
        '-d \'{"session": "NAME", "liked": true}\'',
        "\nPress Ctrl-C to stop.",
        sep="", markup=False, soft_wrap=True,
    )  # fmt: skip
