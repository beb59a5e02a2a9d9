"""Serves the viewer's page and JSON over HTTP.

Invariants: requests only read, except one PUT for a run's notes, accepted only from the page itself (origin, JSON,
key). Every response has a content security policy that allows only the package's own files, and images of the record. A
request for another host name is refused, so that a foreign page cannot read the viewer through its own DNS name. With a
key, each request needs it: as `token` in the address, or in the cookie set by the page.
"""

from __future__ import annotations

import mimetypes
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet.config.record_file import open_record_file
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.files import parse_object
from ajet.record.live_status import read_live_status
from ajet.record.plain_json import strict_json
from ajet.record.resume import last_judge_change
from ajet.schema.errors import UserError
from ajet_viewer import episode_page
from ajet_viewer.config_page import build_config_page
from ajet_viewer.episode_page import Spell
from ajet_viewer.episode_table import EpisodeLinePlace, EpisodeTable, read_line
from ajet_viewer.library import Library, MissingError, read_log_end
from ajet_viewer.notes import MOST_BYTES, NoteConflictError, NoteError, save_notes
from ajet_viewer.settings import SEED, RunSettings, find_differing_keys, hash_without_seed, list_off_curves
from ajet_viewer.table_filter import FilterError, TableFilter, parse_integer, select_rows
from ajet_viewer.task_matrix import build_reward_bins, build_task_matrix

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

ENDED_EARLY = ("failed", "stopped", "interrupted")
"""States of runs for which the page shows the log's end and failed episodes."""
SpellFor = Callable[[Path], Spell | None]
"""Maps a run folder to a function that returns the text of token ids, or to None without a tokenizer."""


class Views:
    """Answers the page's requests with plain values for JSON. There is one instance per server. Thread-safe.

    Args:
        library: the runs of the folder.
        spell_for: returns the function that spells a run's token ids.
    """

    def __init__(self, library: Library, spell_for: SpellFor) -> None:
        self.library = library
        self._spell_for = spell_for
        self._tables: dict[Path, EpisodeTable] = {}
        self._spell_of_run: dict[Path, Spell | None] = {}
        self._checkpoints: dict[Path, Checkpoints] = {}
        self._settings = RunSettings()
        self._spell_lock = threading.Lock()

    def runs(self) -> dict[str, Any]:
        """Return all runs, each with the settings that differ between runs."""
        rows = self.library.runs()
        settings = [self._settings.of(self.library.root / row["name"]) for row in rows]
        keys = find_differing_keys(settings)
        for row, run_settings in zip(rows, settings, strict=True):
            row["settings"] = {key: run_settings[key] for key in keys if key in run_settings}
            row["seeds"] = hash_without_seed(run_settings) if row["kind"] == "train" else None
            row["seed"] = run_settings.get(SEED)
        return {"runs": rows, "only": self.library.only, "keys": keys}

    def save_notes(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Replace a run's notes and return the new ones.

        Args:
            name: the run's name.
            given: the note, its tags, and the number of the edit that it is based on.

        Raises:
            NoteError: the notes have a wrong form or size.
            NoteConflictError: another editor has changed them.
            UserError: the folder cannot be written.
        """
        return save_notes(self.library.path(name), given)

    def run(self, name: str) -> dict[str, Any]:
        """Return a run's row and the result of its last `ajet prove`.

        For a failed or debug run it also has the number of failed episodes and the end of the log.
        """
        folder = self.library.path(name)
        row = self.library.run(name) | {"proof": episode_page.read_proof(folder)}
        row["off"] = list_off_curves(self._settings.of(folder))
        if row["state"] not in ENDED_EARLY and row["kind"] != "debug":
            return row
        # Episodes are read here only for these runs, since reading all of them takes long.
        table = self.table(name)
        table.read_new_rows(0.0)
        failed = sum(1 for episode_row, _ in table.rows() if episode_row["failure"])
        return {**row, "failed": failed, "log": read_log_end(folder)}

    def live(self, name: str) -> dict[str, Any]:
        """Return the live status of a run, as `ajet status` prints it."""
        folder = self.library.path(name)
        if folder not in self._checkpoints:
            self._checkpoints[folder] = checkpoints_of(folder)
        return read_live_status(folder, self._checkpoints[folder]).as_json()

    def metrics(self, name: str, start: int) -> dict[str, Any]:
        """Return the rows of a run's metrics.jsonl after byte offset `start`."""
        return read_metrics(self.library.path(name), start)

    def config(self, name: str) -> dict[str, Any]:
        """Return a run's configuration, each key with the place where it was set."""
        return build_config_page(self.library.path(name))

    def episodes(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        """Return a part of a run's episode table.

        Args:
            query: conditions, sort order, offset and limit, as in the URL.

        Raises:
            FilterError: a condition cannot be parsed.
        """
        table_filter = TableFilter.from_query(query)
        table = self.table(name)
        table.read_new_rows()
        return select_rows(table, table_filter)

    def tasks(self, name: str) -> dict[str, Any]:
        """Return the validation results of a run, by task and step."""
        table = self.table(name)
        table.read_new_rows()
        judge_change = last_judge_change(self.library.path(name))
        return {**build_task_matrix((row for row, _ in table.rows()), judge_change), "complete": table.is_complete}

    def rewards(self, name: str) -> dict[str, Any]:
        """Return the reward histograms of a run, by split and step."""
        table = self.table(name)
        table.read_new_rows()
        return {"splits": build_reward_bins(row for row, _ in table.rows()), "complete": table.is_complete}

    def episode(self, name: str, uuid: str) -> dict[str, Any]:
        """Return an episode without its tokens."""
        row, line_place = self._find_episode(name, uuid)
        return episode_page.build_episode_page(*episode_page.read_episode(line_place), step=row["step"])

    def tokens(self, name: str, uuid: str, line: int, start: int, stop: int) -> dict[str, Any]:
        """Return the tokens with index `start` to `stop - 1` of a token sequence of an episode.

        Args:
            line: index of the token sequence.
        """
        episode, _ = episode_page.read_episode(self._find_episode(name, uuid)[1])
        try:
            timeline = episode_page.list_token_lines(episode)[line]
        except IndexError as error:
            raise MissingError(
                f"The episode has no conversation {line}. It may have been recorded anew: reload its page."
            ) from error
        return episode_page.build_token_window(episode, timeline, start, stop, self._load_speller(name))

    def raw(self, name: str, uuid: str) -> bytes:
        """Return the JSON line of an episode, as it is in the run's folder."""
        return read_line(self._find_episode(name, uuid)[1])

    def table(self, name: str) -> EpisodeTable:
        """Return the run's episode table."""
        folder = self.library.path(name)
        return self._tables.setdefault(folder, EpisodeTable(folder))

    def _find_episode(self, name: str, uuid: str) -> tuple[dict[str, Any], EpisodeLinePlace]:
        """Return an episode's row and the place of its line. Unread files are read before an episode counts as missing.

        Raises:
            MissingError: the run has no such episode.
        """
        table = self.table(name)
        if table.find(uuid) is None:
            table.read_new_rows(wait=None)
        row_and_place = table.find(uuid)
        if row_and_place is None:
            raise MissingError(f"There is no episode {uuid} in {name}.")
        return row_and_place

    def _load_speller(self, name: str) -> Spell | None:
        """Return the function that spells a run's token ids, or None without a tokenizer, which is loaded once."""
        folder = self.library.path(name)
        # Several requests at once ask for the first tokens of a run; only one of them may load its tokenizer.
        with self._spell_lock:
            if folder not in self._spell_of_run:
                self._spell_of_run[folder] = self._spell_for(folder)
            return self._spell_of_run[folder]


def build_app(views: Views, *, hosts: frozenset[str], key: str | None) -> Starlette:
    """Build the web application of the viewer.

    Args:
        views: answers the requests.
        hosts: accepted Host headers, with the port, or empty to accept any.
        key: secret token that each request must have, or None.
    """

    def find_refusal(request: Request) -> Response | None:
        """Return an error response for a request from another host name or without the viewer's token, or None."""
        if hosts and request.headers.get("host", "") not in hosts:
            return _make_error(403, "The viewer answers only at its own address.")
        if key is not None:
            token = request.query_params.get("token") or request.cookies.get(_name_cookie(request)) or ""
            if not secrets.compare_digest(token.encode("utf-8", "surrogatepass"), key.encode()):
                return _make_error(401, "This viewer needs its token: open the printed address.")
        return None

    def make_handler(work: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Return a request handler that runs `work` in a thread and sends its result as JSON, its errors as status
        codes."""

        async def handle(request: Request) -> Response:
            """Check the request, run `work` in a thread, and answer with its result or with its error's status."""
            refusal = find_refusal(request)
            if refusal is not None:
                return refusal
            try:
                content = await run_in_threadpool(work, request)
                if isinstance(content, Response):
                    return content
                body = await run_in_threadpool(lambda: strict_json(content).encode(errors="replace"))
                return Response(body, media_type="application/json", headers=HEADERS)
            except (MissingError, OSError) as error:
                return _make_error(
                    404, str(error) if isinstance(error, MissingError) else "This run was deleted meanwhile."
                )
            except (FilterError, NoteError) as error:
                return _make_error(400, str(error))
            except NoteConflictError as error:
                return _make_error(409, str(error))
            except UserError as error:
                return _make_error(422, f"This record cannot be read: {error}")
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
                return _make_error(422, f"This record cannot be read: {type(error).__name__}: {str(error)[:300]}")

        return handle

    def serve_page(request: Request) -> Response:
        """Serve the page, and store the viewer's token in a cookie for the page's own requests."""
        response = _serve_file(PAGE / "index.html")
        if key is not None:
            response.set_cookie(_name_cookie(request), key, httponly=True, samesite="strict")
        return response

    def serve_own_file(request: Request) -> Response:
        """Serve a file of the page's folder. Only names found by listing the folder are opened."""
        file_name = request.path_params["file"]
        page_files = {str(path.relative_to(PAGE)): path for path in PAGE.rglob("*") if path.is_file()}
        if file_name not in page_files:
            raise MissingError(f"There is no file {file_name}.")
        return _serve_file(page_files[file_name])

    def serve_raw_episode(request: Request) -> Response:
        """Serve an episode's JSON line as a download."""
        name, uuid = request.path_params["run"], request.path_params["uuid"]
        headers = {**HEADERS, "content-disposition": f'attachment; filename="{_clean_file_name(uuid)}.json"'}
        return Response(views.raw(name, uuid), media_type="application/json", headers=headers)

    async def put_notes(request: Request) -> Response:
        """Replace a run's notes by the request's body, which is read up to MOST_BYTES only."""
        refusal = find_refusal(request) or _refuse_foreign_page(request)
        if refusal is not None:
            return refusal
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                return _make_error(413, f"A note has at most {MOST_BYTES:,} bytes.")

        def work(request: Request) -> dict[str, Any]:
            """Parse the body, and save the notes. Raises NoteError if the body is no JSON object."""
            try:
                note = parse_object(body)
            except ValueError as error:
                raise NoteError(str(error)) from error
            return views.save_notes(get_run_name(request), note)

        handle: Response = await make_handler(work)(request)
        return handle

    def read_number(request: Request, name: str, default: int) -> int:
        """Return an integer parameter of the address, or the default without it."""
        text = request.query_params.get(name, "")
        return parse_integer(name, text) if text else default

    def read_conditions(request: Request) -> dict[str, str]:
        """Return the conditions of the episode table in the address, without the viewer's token."""
        return {name: value for name, value in request.query_params.items() if name != "token"}

    def serve_tokens(request: Request) -> Any:
        """Return a part of an episode's tokens, as selected by `line`, `start` and `stop` in the address."""
        start = read_number(request, "start", 0)
        stop = read_number(request, "stop", start + episode_page.PIECE)
        return views.tokens(
            request.path_params["run"], request.path_params["uuid"], read_number(request, "line", 0), start, stop
        )

    def get_run_name(request: Request) -> str:
        """Return the name of the requested run."""
        return str(request.path_params["run"])

    routes: list[tuple[str, Callable[[Request], Any]]] = [
        ("/", serve_page),
        ("/page/{file:path}", serve_own_file),
        ("/api/runs", lambda request: views.runs()),
        ("/api/live/{run:path}", lambda request: views.live(get_run_name(request))),
        (
            "/api/metrics/{run:path}",
            lambda request: views.metrics(get_run_name(request), read_number(request, "start", 0)),
        ),
        ("/api/config/{run:path}", lambda request: views.config(get_run_name(request))),
        ("/api/rewards/{run:path}", lambda request: views.rewards(get_run_name(request))),
        ("/api/tasks/{run:path}", lambda request: views.tasks(get_run_name(request))),
        ("/api/episodes/{run:path}", lambda request: views.episodes(get_run_name(request), read_conditions(request))),
        ("/api/episode/{uuid}/of/{run:path}", lambda request: views.episode(get_run_name(request), _get_uuid(request))),
        ("/api/tokens/{uuid}/of/{run:path}", serve_tokens),
        ("/api/raw/{uuid}/of/{run:path}", serve_raw_episode),
        ("/api/run/{run:path}", lambda request: views.run(get_run_name(request))),
    ]
    notes_route = Route("/api/notes/{run:path}", put_notes, methods=["PUT"])
    return Starlette(routes=[*(Route(path, make_handler(work), methods=["GET"]) for path, work in routes), notes_route])


def _refuse_foreign_page(request: Request) -> Response | None:
    """Return an error response for a request that does not come from the viewer's own page, or None.

    A foreign page may send the viewer's cookie along (cookies ignore ports), but cannot forge the origin or send JSON.
    """
    origin, content_type = request.headers.get("origin", ""), request.headers.get("content-type", "")
    if origin.partition("://")[2] != request.headers.get("host", "") or not origin:
        return _make_error(403, "Notes can be changed only from the viewer's own page.")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return _make_error(415, "Notes must be sent as application/json.")
    return None


def _name_cookie(request: Request) -> str:
    """Return the name of the cookie with the viewer's token, which contains the port.

    Browsers share the cookies of a host between ports, and several viewers may run.
    """
    return f"ajet_viewer_{request.url.port or 80}"


def _get_uuid(request: Request) -> str:
    """Return the uuid of the requested episode."""
    return str(request.path_params["uuid"])


def _serve_file(path: Path) -> Response:
    """Return a file as a response, with its content type and the page's security headers."""
    content_type = mimetypes.guess_type(path.name)[0] or "text/plain"
    return Response(path.read_bytes(), media_type=content_type, headers=HEADERS)


def _make_error(status: int, message: str) -> Response:
    """Return an error as JSON, with the page's security headers."""
    return JSONResponse({"error": message}, status_code=status, headers=HEADERS)


def _clean_file_name(name: str) -> str:
    """Return the letters of a name that are safe in a file name, or "episode" if none remains."""
    return "".join(letter for letter in name if letter.isalnum() or letter in "-_") or "episode"


# Read a run's `metrics.jsonl` from a byte position.
# Invariant: only complete lines are read. The result has the next position, and tells if the file was shortened by
# a resume.
MOST_METRICS_BYTES = 64 << 20
"""Maximum number of bytes read for one response; the rest follows in the next."""
LEFT_OUT = ("tasks", "again", "discarded", "waiting", "given_up")
"""Fields not shown in curves."""


def read_metrics(folder: Path, start: int) -> dict[str, Any]:
    """Read the complete rows of a run's metrics.jsonl from a byte offset on.

    Returns:
        rows: the rows. next: byte offset for the next call. reset: True if the file became shorter than `start`, so
        that it was read from its beginning. damaged: number of lines that cannot be parsed.
    """
    path = folder / "metrics.jsonl"
    try:
        with open_record_file(path) as file:
            size = file.seek(0, 2)
            reset = start > size
            file.seek(0 if reset else start)
            data = file.read(MOST_METRICS_BYTES)
    except OSError:
        return {"rows": [], "next": 0, "reset": start > 0, "damaged": 0}
    complete = data[: data.rfind(b"\n") + 1]
    rows, damaged = [], 0
    for line in complete.splitlines():
        try:
            row = parse_object(line)
            rows.append({name: value for name, value in row.items() if name not in LEFT_OUT})
        except ValueError:
            damaged += 1
    return {"rows": rows, "next": (0 if reset else start) + len(complete), "reset": reset, "damaged": damaged}
