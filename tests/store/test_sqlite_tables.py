"""A store's file while it is made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ajet.schema.errors import AjetError
from ajet.store import open_shared


@pytest.mark.parametrize("number", range(15))
def test_processes_that_make_one_file_at_once_all_open_it(tmp_path: Path, number: int) -> None:
    together, problems = threading.Barrier(6), list[AjetError]()

    def open_it() -> None:
        together.wait()
        try:
            open_shared(f"sqlite:{tmp_path}/store.db").disconnect()
        except AjetError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems
