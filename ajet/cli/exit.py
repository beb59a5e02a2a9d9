"""Exit codes: the only place that converts an exception into a number and a screen.

Invariant: a UserError is one screen without a traceback (`--traceback` shows the traceback), and exits with the code of
its class. An unexpected error shows its last lines. The traceback of an unexpected error and of a RunFailed is in a log
with a printed path. 75 is EX_TEMPFAIL of sysexits.h. Usage errors are typer's own, also 2.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ajet.schema.errors import MissingExtraError, RunFailed, ServiceUnreachableError, UserError

OK, INTERRUPTED = 0, 130
UNEXPECTED, USER, PREEMPTED = RunFailed.exit_code, UserError.exit_code, ServiceUnreachableError.exit_code
NEGATIVE = 1
"""The command worked and the answer is no or missing: a failed proof, judges without a decision."""
EXIT_CODES = (
    (OK, "done"),
    (UNEXPECTED, "unexpected error"),
    (NEGATIVE, "the answer of a check is no, or there is none"),
    (USER, "user error or usage error"),
    (PREEMPTED, "SIGTERM or SIGHUP, or the store is out of reach; the same command goes on"),
    (INTERRUPTED, "Ctrl-C"),
)
"""Every exit code and what it means."""
LOCAL_PACKAGES = ("torch", "transformers", "datasets", "safetensors", "huggingface_hub", "pyarrow", "pandas")
"""Packages of the extra `local`, without which commands on models and data sets end with one screen."""
LAST_LINES = 6
_USAGE_ERROR = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


class ExitGroup(TyperGroup):
    """The root group of the command line, which turns every exception of a command into an exit code and a screen."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and end the process by typer.Exit with the code of its result or exception.

        A typer error passes unchanged, for typer prints it; a UserError is shown as one screen; any other exception
        with the end of its traceback.
        """
        show_traceback = bool((ctx.obj or {}).get("traceback"))
        record = (ctx.obj or {}).get("record")
        try:
            code = super().invoke(ctx)
        except _USAGE_ERROR as error:  # type: ignore[misc]
            error.message = error.message.removeprefix("Value error, ")  # a validator's word, not a person's
            raise
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except UserError as error:
            is_logged = isinstance(error, RunFailed) and not isinstance(error, ServiceUnreachableError)
            show_user_error(error, show_traceback=show_traceback and not is_logged)
            if is_logged:
                write_traceback(error, shown=show_traceback, record=record)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as interrupt:
            from ajet.train.interrupts import Preempted, explain_end

            typer.echo(explain_end(interrupt), err=True)
            raise typer.Exit(PREEMPTED if isinstance(interrupt, Preempted) else INTERRUPTED) from None
        except Exception as error:  # noqa: BLE001 — the border of the process
            from ajet.client.proxies import explain_problem

            if isinstance(error, ModuleNotFoundError) and error.name in LOCAL_PACKAGES:
                show_user_error(
                    MissingExtraError(error.name, "local", needed_for="This command"), show_traceback=show_traceback
                )
                raise typer.Exit(USER) from None
            if explained := explain_problem(error):
                show_user_error(UserError(explained, where="environment"), show_traceback=show_traceback)
                raise typer.Exit(USER) from None
            show_unexpected(error, show_traceback=show_traceback, record=record)
            raise typer.Exit(UNEXPECTED) from None
        raise typer.Exit(code if isinstance(code, int) else OK)


def show_user_error(error: UserError, *, show_traceback: bool = False) -> None:
    """Print a user's error to standard error: what happened, where, what was expected, what to do."""
    from rich.text import Text

    from ajet.record.console import SafeConsole

    if show_traceback:
        typer.echo(_redact_text("".join(traceback.format_exception(error))), err=True)
    console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error  ", "bold red"), (error.what, "bold")))
    for label, text in error.rows():
        console.print(Text.assemble((f"  {label:<9}", "cyan"), text))


def show_unexpected(error: Exception, *, show_traceback: bool = False, record: Path | None = None) -> None:
    """Print the end of an unexpected error's traceback, and write the complete one to a log.

    Args:
        show_traceback: Print the complete traceback.
        record: The folder of runs, for the log if no run has one.
    """
    lines = _redact_text("".join(traceback.format_exception(error))).rstrip().splitlines()
    typer.echo("\n".join(lines if show_traceback else lines[-LAST_LINES:]), err=True)
    typer.echo("This error is unexpected and most likely a bug in ajet.", err=True)
    write_traceback(error, record=record)


def write_traceback(error: Exception, *, shown: bool = False, record: Path | None = None) -> None:
    """Append an error's traceback to the run's log, or to `crash.log` in the folder of runs, and print the file's path.

    Args:
        shown: True to print the traceback, too.
        record: The folder of runs. None: the default folder `launcher_record`.
    """
    text = _redact_text("".join(traceback.format_exception(error)))
    if shown:
        typer.echo(text, err=True)
    log = getattr(error, "log", None) or (record or Path("launcher_record")) / "crash.log"
    try:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {_redact_text(' '.join(sys.argv))}\n{text}\n")
    except OSError as os_error:
        typer.echo(f"(The traceback could not be written to {log}: {os_error}; --traceback prints it.)", err=True)
        return
    typer.echo(f"The full traceback is in {Path(log).absolute()}", err=True)


def _redact_text(text: str) -> str:
    """Return the text without secrets and control characters, which could change the terminal's state."""
    from ajet.record.console import replace_control_characters
    from ajet.record.secrets import Redactor

    return replace_control_characters(Redactor()(text))
