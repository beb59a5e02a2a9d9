"""What a look at a store shows, for `ajet doctor --store`.

Invariant: nothing is changed: no file is made, no lease ended. A server that does not answer is a finding.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from ajet.schema.errors import UserError
from ajet.schema.finding import Finding
from ajet.store import findings, sqlite_tables
from ajet.store.opening import Address, credentials


def survey(text: str, *, base: Path | None = None, run: str = "") -> list[Finding]:
    """The findings about the store at an address. Raises UserError for what is no address."""
    address = Address.of(text, base=base, run=run)
    if address.path is not None:
        return _sqlite(address.path)
    from ajet.store.mongo.survey import survey_server

    try:
        return survey_server(address.uri, address.database, credentials())
    except UserError as error:
        return [Finding("server", "problem", error.what, error.do or error.expected)]


def _sqlite(path: Path) -> list[Finding]:
    if not path.exists():
        return [Finding("file", "note", f"{path} is not there", "the first process that opens it makes it")]
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return _looked_at(base, path)
    except sqlite3.DatabaseError as error:
        return [Finding("file", "problem", f"{path}: {error}", "it is no store, or damaged")]


def _looked_at(base: sqlite3.Connection, path: Path) -> list[Finding]:
    started = time.perf_counter()
    (found,) = base.execute("PRAGMA user_version").fetchone()
    milliseconds = 1000 * (time.perf_counter() - started)
    shown = [Finding("file", "ok", f"{path}, SQLite {sqlite3.sqlite_version}, read in {milliseconds:.1f} ms")]
    shown.append(findings.version(found, sqlite_tables.VERSION))
    if found != sqlite_tables.VERSION:
        return shown
    states = dict(base.execute("SELECT state, COUNT(*) FROM positions GROUP BY state").fetchall())
    (ends,) = base.execute("SELECT COUNT(*) FROM ends").fetchone()
    shown.append(findings.contents(states, ends, path.stat().st_size))
    dead = base.execute("SELECT place, reasons FROM positions WHERE state = 'dead' ORDER BY place").fetchall()
    shown += findings.letters((order, json.loads(reasons)[-1]) for order, reasons in dead)
    for said, _, at in base.execute("SELECT said, trainer, time FROM policy"):
        shown.append(findings.announced(json.loads(said), time.time() - at))
    leased = "SELECT holder, COUNT(*) FROM positions WHERE state = 'leased' GROUP BY holder"
    holds = dict(base.execute(leased).fetchall())
    for name, role, seen in base.execute("SELECT name, role, seen FROM members ORDER BY role DESC, name"):
        shown.append(findings.member(role, name, time.time() - seen, holds.get(name, 0)))
    return shown
