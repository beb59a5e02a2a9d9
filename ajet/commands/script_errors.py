"""Shows uncaught errors and interrupts from ajet in a script as one screen, without frames of ajet.

Invariant: the exception passes through the script as any other: `except` and `finally` run. For an uncaught exception,
`sys.excepthook`, set for this exception on leaving ajet, prints the screen and sets the command's exit code.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from ajet.schema.errors import ServiceUnreachableError, UserError

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
INTERRUPTED = 130
"""The exit code of Ctrl-C, as in `ajet.cli.exit`."""


def shorten_uncaught_errors(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Decorate a function for scripts, so that its uncaught UserError or interrupt prints one short screen."""

    @functools.wraps(function)
    def call_function(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except (UserError, KeyboardInterrupt) as error:
            if not isinstance(sys.excepthook, _BriefHook) or sys.excepthook.error is not error:
                sys.excepthook = _BriefHook(error)
            raise

    return call_function


class _BriefHook:
    """A `sys.excepthook` that prints one exception as a short screen. Other exceptions go to the previous hook."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        hook = sys.excepthook
        self._previous_hook: Callable[..., object] = hook._previous_hook if isinstance(hook, _BriefHook) else hook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print the screen and exit with the error's code, if it is this hook's exception."""
        sys.excepthook = self._previous_hook
        if error is not self.error:
            self._previous_hook(kind, error, trace)
            return
        sys.stderr.write(f"{_render_screen(error)}{_find_call_place(trace)}\n")
        raise SystemExit(_choose_exit_code(error))


def _render_screen(error: BaseException) -> str:
    """Return the text for an error or interrupt, without secrets and control characters."""
    from ajet.record.console import replace_control_characters
    from ajet.record.secrets import Redactor
    from ajet.train.interrupts import explain_end

    if isinstance(error, KeyboardInterrupt):
        return explain_end(error, started="program")
    return str(replace_control_characters(Redactor()(f"error: {error}")))


def _find_call_place(trace: TracebackType | None) -> str:
    """Return a line with the place in the user's code that called ajet, or "" if there is none."""
    from ajet.config.references import is_library_file

    frames = [frame for frame in traceback.extract_tb(trace) if not is_library_file(frame.filename)]
    user_frames = [frame for frame in frames if Path(frame.filename).is_file()]
    return f"\n  called at: {user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else ""


def _choose_exit_code(error: BaseException) -> int:
    """Return the exit code that the command `ajet` would have for the error."""
    from ajet.train.interrupts import Preempted

    if isinstance(error, UserError):
        return error.exit_code
    return ServiceUnreachableError.exit_code if isinstance(error, Preempted) else INTERRUPTED
