"""What a look at a store in SQLite shows, for `ajet doctor --store`.

Invariant: nothing is changed: no file is made, no lease ended.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from ajet.schema.errors import UserError
from ajet.schema.finding import Finding
from ajet.store import findings, sqlite_tables
from ajet.store.sqlite_rows import DamagedRow, read_announced, read_member, read_reasons


def survey_file(path: Path) -> list[Finding]:
    """Return the findings about the store in a file."""
    if not path.exists():
        return [Finding("file", "note", f"{path} is not there", "the first process that opens it makes it")]
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return _looked_at(base, path)
    except UserError as error:
        return [Finding("file", "problem", error.what, error.expected)]
    except (sqlite3.DatabaseError, DamagedRow) as error:
        return [Finding("file", "problem", f"{path}: {error}", "it is no store, or damaged")]


def _looked_at(base: sqlite3.Connection, path: Path) -> list[Finding]:
    started = time.perf_counter()
    (found,) = base.execute("PRAGMA user_version").fetchone()
    milliseconds = 1000 * (time.perf_counter() - started)
    shown = [Finding("file", "ok", f"{path}, SQLite {sqlite3.sqlite_version}, read in {milliseconds:.1f} ms")]
    if not found:
        sqlite_tables.require_own(base, path)
        return [*shown, Finding("schema", "note", "no tables yet", "the first process that opens it makes them")]
    shown.append(findings.version(found, sqlite_tables.VERSION))
    if found != sqlite_tables.VERSION:
        return shown
    sqlite_tables.require_own(base, path)
    states = dict(base.execute("SELECT state, COUNT(*) FROM positions GROUP BY state").fetchall())
    (ends,) = base.execute("SELECT COUNT(*) FROM ends").fetchone()
    shown.append(findings.contents(states, ends, path.stat().st_size))
    dead = base.execute("SELECT place, reasons FROM positions WHERE state = 'dead' ORDER BY place").fetchall()
    shown += findings.letters((order, (read_reasons(reasons) or [""])[-1]) for order, reasons in dead)
    for row in base.execute("SELECT said, trainer, time FROM policy"):
        latest = read_announced(row, time.time())
        shown.append(findings.announced(asdict(latest.policy), latest.age))
    leased = "SELECT holder, COUNT(*) FROM positions WHERE state = 'leased' GROUP BY holder"
    holds = dict(base.execute(leased).fetchall())
    for row in base.execute("SELECT role, name, seen, joined, told, 0 FROM members ORDER BY role DESC, name"):
        if (member := read_member(row, time.time())) is not None:
            shown.append(findings.member(member.role, member.name, member.age, holds.get(member.name, 0)))
        else:
            shown.append(
                Finding("members", "warning", f"a row that ajet never wrote ({row[1]!r:.60})", "it is left out")
            )
    return shown
