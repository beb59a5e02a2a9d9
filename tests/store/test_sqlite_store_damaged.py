"""A store file that is damaged, or holds what ajet never wrote: each use is one screen that says so, or goes on."""

import random
import shutil
import sqlite3
from contextlib import closing, suppress

import pytest

from ajet.schema.errors import UserError
from ajet.store import Address, Kept, LeaseLostError, open_reader, open_shared
from tests.support.record_fixtures import episode

JUNK = ["text", b"\xff\x00", None, "[" * 5000, 2**62, '{"a": 1e999}', -1]
PAGE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "store.db"
    store = open_shared(f"sqlite:{path}", rolls=True, run="r")
    leases = store.lease(6)
    for number, lease in enumerate(leases[:4]):
        for name in "ab":
            store.put(lease, Kept(episode(f"{name}{number}" * 3, number)))
        store.close(lease)
    store.use([leases[0].order], 1)
    store.join("sampler", "one", {"a": 1})
    store.give_back(leases[5:])
    store.commit()
    store.bring()
    store.disconnect()
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def screens(path, *, rolls):
    """What is said where the file is opened, used and read; anything but screens fails."""
    said = []

    def say(work):
        try:
            return work()
        except UserError as screen:
            said.append(f"{screen.what} {screen.do}")
        except LeaseLostError:  # a position whose attempts were altered is set aside
            pass
        return None

    store = say(lambda: open_shared(f"sqlite:{path}", rolls=rolls, run="r", unreachable_timeout=1))
    if store is not None:
        uses = [store.depths, store.closed, store.bring, store.dead, store.announced, store.begun, store.members]
        uses += [store.commit, store.lease_kept] if rolls else [lambda: store.lease(2)]
        uses += [lambda: store.join("sampler", "two", {}), lambda: store.use([0], 2), store.leave]
        for use in uses:
            say(use)
        store.disconnect()
    reading = say(lambda: open_reader(Address(path)))
    if reading is not None:
        for use in (reading.announced, reading.begun, reading.orders, lambda: reading.position(0)):
            say(use)
        reading.close()
    return said


def test_flipped_bits_are_called_damage(whole, tmp_path):
    draw, raw = random.Random(7), whole.read_bytes()
    said = []
    for number in range(20):
        damaged, page = bytearray(raw), draw.randrange(len(raw) // PAGE)
        for _ in range(draw.choice((1, 8, 200))):
            damaged[page * PAGE + draw.randrange(PAGE)] ^= 1 << draw.randrange(8)
        path = tmp_path / f"{number}.db"
        path.write_bytes(damaged)
        said += screens(path, rolls=number % 2 == 0)
    assert said and not any("make room" in each.lower() for each in said)


@pytest.mark.slow
def test_junk_in_any_column_ends_in_screens(whole, tmp_path):
    with closing(sqlite3.connect(whole)) as base:
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        places = [(table, row[1]) for table in tables for row in base.execute(f"PRAGMA table_info({table})")]
    draws = [(place, JUNK[(number + more) % len(JUNK)]) for number, place in enumerate(places) for more in (0, 3)]
    draws += [(place, "[" * 5000) for place in (("members", "told"), ("policy", "said"), ("positions", "reasons"))]
    draws.append((("ends", "place"), "text"))
    for number, ((table, column), junk) in enumerate(draws):
        path = tmp_path / f"{number}.db"
        shutil.copy(whole, path)
        with closing(sqlite3.connect(path)) as base, suppress(sqlite3.Error), base:  # the table itself refuses some
            base.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = 1", (junk,))
        assert not any("make room" in each.lower() for each in screens(path, rolls=number % 2 == 0)), (table, column)
