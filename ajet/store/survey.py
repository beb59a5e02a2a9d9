"""What a look at a store shows, for `ajet doctor --store`.

Invariant: nothing is changed: no file is made, no lease ended. A server that does not answer is a finding.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ajet.schema.errors import UserError
from ajet.schema.finding import Finding
from ajet.store import sqlite_tables
from ajet.store.opening import Address, credentials

SILENT = 300.0
"""Seconds after which a member is said to be silent."""


def survey(text: str, *, base: Path | None = None, run: str = "") -> list[Finding]:
    """Of the store at an address. Raises UserError for what is no address."""
    address = Address.of(text, base=base, run=run)
    if address.path is not None:
        return _sqlite(address.path)
    from ajet.store.mongo.survey import survey_server

    try:
        return survey_server(address.uri, address.database, credentials())
    except UserError as error:
        return [Finding("server", "problem", error.what, error.do or error.expected)]


def contents(states: Mapping[str, int], ends: int, size: int) -> Finding:
    """`states`: how many positions are in which; `size`: bytes."""
    told = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())) or "none yet"
    return Finding("positions", "ok", f"{told}; {ends:,} episodes, {size / 1e6:,.1f} MB")


def letters(reasons: Iterable[tuple[int, str]]) -> list[Finding]:
    """`reasons`: of positions that are dead, the last one of each."""
    dead = list(reasons)
    if not dead:
        return []
    shown = "; ".join(f"position {order}: {reason}" for order, reason in dead[:3])
    more = f"; and {len(dead) - 3} more" if len(dead) > 3 else ""
    return [Finding("dead letters", "warning", f"{len(dead)}: {shown}{more}", "they are played no more")]


def member(role: str, name: str, age: float, leases: int) -> Finding:
    """One process."""
    holds = f"{leases} lease{'s' * (leases != 1)}"
    silent = "silent: what it played goes to others when its leases end" if age > SILENT else ""
    return Finding(f"{role} {name}", "warning" if silent else "ok", f"heard {age:.0f} s ago, {holds}", silent)


def announced(said: Mapping[str, Any], age: float) -> Finding:
    """The policy to play with."""
    return Finding("policy", "ok", f"step {said['step']}, {age:.0f} s ago, weights at {said['weights']}")


def version(found: int, known: int) -> Finding:
    """Of the store's schema."""
    if found == known:
        return Finding("schema", "ok", f"version {found}")
    if found > known:
        return Finding("schema", "problem", f"version {found}; this ajet knows {known}", "update ajet here")
    return Finding("schema", "note", f"version {found}", f"the next process that opens it makes it {known}")


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
    shown.append(version(found, sqlite_tables.VERSION))
    if found != sqlite_tables.VERSION:
        return shown
    states = dict(base.execute("SELECT state, COUNT(*) FROM positions GROUP BY state").fetchall())
    (ends,) = base.execute("SELECT COUNT(*) FROM ends").fetchone()
    shown.append(contents(states, ends, path.stat().st_size))
    dead = base.execute("SELECT place, reasons FROM positions WHERE state = 'dead' ORDER BY place").fetchall()
    shown += letters((order, json.loads(reasons)[-1]) for order, reasons in dead)
    for said, _, at in base.execute("SELECT said, trainer, time FROM policy"):
        shown.append(announced(json.loads(said), time.time() - at))
    leased = "SELECT holder, COUNT(*) FROM positions WHERE state = 'leased' GROUP BY holder"
    holds = dict(base.execute(leased).fetchall())
    for name, role, seen in base.execute("SELECT name, role, seen FROM members ORDER BY role DESC, name"):
        shown.append(member(role, name, time.time() - seen, holds.get(name, 0)))
    return shown
