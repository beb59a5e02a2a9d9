"""A call that is waited for so long and no longer.

Invariant: whoever asks goes on after `seconds`, whatever the call does; one that was given up runs on in a daemon
thread, which keeps no process alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float | None, call: Callable[[], T], *, what: str) -> T:
    """What `call` answers or raises. Raises TimeoutError, which says `what` was waited for. None: waited for at any
    length, in this thread."""
    if seconds is None:
        return call()
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below, where somebody sees it
            errors.append(error)

    thread = threading.Thread(target=work, name=f"ajet-{what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]
