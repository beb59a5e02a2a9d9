"""While AWorld's loggers are imported, loguru's sinks are kept from that import and from nobody else."""

from __future__ import annotations

import threading

import pytest
from loguru import logger

from ajet_aworld.quiet_import import FILES, _keep_sinks


def test_only_the_thread_that_imports_neither_adds_nor_removes_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILES, raising=False)
    before: list[str] = []
    beside: list[str] = []
    numbers: list[int] = []

    def another() -> None:
        numbers.append(logger.add(beside.append, format="{message}"))
        numbers.append(logger.add(before.append))
        logger.remove(numbers.pop())

    kept = logger.add(before.append, format="{message}")
    with _keep_sinks():
        logger.remove()
        assert logger.add(before.append) == -1
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
    logger.info("a line")
    for number in (kept, *numbers):
        logger.remove(number)
    assert before == beside == ["a line\n"]
