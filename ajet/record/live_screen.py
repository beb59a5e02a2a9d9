"""What is drawn again and again on a terminal, begun so that an interrupt at any moment gives the terminal back.

Invariant: standard output and error are the program's own again when the drawing is over, also where Ctrl-C came as it
began: rich gives them back after an error of its own alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live


@contextmanager
def live_screen(first: RenderableType, console: Console, **how: Any) -> Iterator[Live]:
    """A screen that its user draws again by `update(…, refresh=True)`. how: see rich."""
    live = Live(first, console=console, auto_refresh=False, **how)
    begin(lambda: live.start(refresh=True), live.stop)
    try:
        yield live
    finally:
        live.stop()


def begin(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """`start`, and `stop` where that is cut short."""
    try:
        start()
    except BaseException:
        stop()
        raise
