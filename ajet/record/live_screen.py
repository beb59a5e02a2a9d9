"""Output that a terminal redraws repeatedly, and a line that shows the present work.

Invariant: standard output and error are the program's own again when the drawing is over, also if Ctrl-C came at its
begin: rich restores them only after an error of its own. A `LiveLine` is never silent for longer than `EVERY_S`. A log
file or a pipe gets complete lines without control characters. Nothing is drawn over a waiting debugger's prompt (pdb).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from ajet.record.console import console as shared_console
from ajet.record.console import printable


@contextmanager
def live_screen(first: RenderableType, console: Console, **how: Any) -> Iterator[Live]:
    """Yield a screen area that the caller redraws by `update(…, refresh=True)`; it ends with the block.

    Args:
        first: The first content.
        how: Further arguments of rich's `Live`.
    """
    live = Live(first, console=console, auto_refresh=False, **how)
    begin(lambda: live.start(refresh=True), live.stop)
    try:
        yield live
    finally:
        live.stop()


def begin(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call `start`. If it raises, also at Ctrl-C, call `stop` before the exception goes on.

    rich replaces the standard streams at the start, and only `stop` restores them.
    """
    try:
        start()
    except BaseException:
        stop()
        raise


EVERY_S = 5.0
"""Between two plain lines, in seconds."""
REDRAW_S = 0.25


class LiveLine:
    """Shows changing lines while the context is open: redrawn in a terminal, printed at intervals into a file."""

    def __init__(
        self, lines: Callable[[], Sequence[str]], console: Console | None = None, *, every_s: float = EVERY_S
    ) -> None:
        """Args:
        lines: Returns the present lines, the most important one first.
        console: Where to print. None: the shared console.
        every_s: Seconds between two lines where nothing can be redrawn.
        """
        self._build_lines = lines
        self._console = console or shared_console
        self._line_interval_s = every_s
        self._live_display: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live_display = Live(
                get_renderable=self._draw_lines, console=self._console, auto_refresh=False, transient=True
            )  # its own thread would go on drawing over a prompt
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run_redraws, name="ajet-live-line", daemon=True)

    def __enter__(self) -> LiveLine:
        if self._live_display is not None:
            begin(partial(self._live_display.start, refresh=True), self._live_display.stop)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the lines from the screen and end the redrawing thread. Idempotent."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live_display is not None:
            self._live_display.stop()

    def _run_redraws(self) -> None:
        """Redraw or print the lines until `close`. Paused while a debugger waits for input."""
        while not self._is_over.wait(REDRAW_S if self._live_display is not None else self._line_interval_s):
            paused = is_prompting()
            if self._live_display is None:
                if not paused:
                    text = " · ".join(self._build_lines())
                    self._console.print(Text(printable(text)), soft_wrap=True)
            elif paused:
                self._live_display.stop()
            else:
                self._live_display.start()
                self._live_display.refresh()

    def _draw_lines(self) -> Text:
        """Return the present lines as text: the first one in colour, the others dim."""
        first, *others = [printable(line) for line in self._build_lines()] or [""]
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(first, style="cyan")
        for line in others:
            text.append(f"\n{line}", style="dim")
        return text


def is_prompting() -> bool:
    """Return True if a thread of this process waits at a debugger's prompt, over which nothing may be drawn."""
    if "cmd" not in sys.modules:
        return False
    frame: FrameType | None
    for frame in sys._current_frames().values():
        while frame is not None:
            # pdb reads its commands in `cmd.Cmd.cmdloop`.
            if frame.f_code.co_name == "cmdloop":
                return True
            frame = frame.f_back
    return False
