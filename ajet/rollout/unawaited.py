"""A call that an `await` is missing at: where the person made the coroutine that their code then used as its result."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType


def explain_unawaited(problem: BaseException) -> str:
    """Return which line lacks the `await`, and how to write it.

    The coroutine is closed: Python would otherwise warn of it later, and name a line of its own.
    """
    frame, name = None, ""
    for found, local in _unstarted(problem.__traceback__):
        frame, name = found, local
    if frame is None:
        return "an `await` is missing where it was made"
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    line = _assigned_at(file, name, frame.f_lineno)
    missing = f"an `await` is missing {f'at {Path(file).name}:{line}' if line else 'where it was made'}"
    if frame.f_code.co_flags & inspect.CO_COROUTINE:
        return missing
    return (
        f"{missing}: write `async def {function}(…):` and `await` the call; or keep `def` and use "
        "`openai.OpenAI(base_url=…, api_key=…)` with `tuner.as_oai_baseurl_apikey()`"
    )


def _unstarted(trace: TracebackType | None) -> Iterator[tuple[FrameType, str]]:
    """Close the coroutines that local variables of the frames hold and nothing has begun; yield whose they are."""
    while trace is not None:
        for name, value in list(trace.tb_frame.f_locals.items()):
            if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
                value.close()
                yield trace.tb_frame, name
        trace = trace.tb_next


def _assigned_at(file: str, name: str, before: int) -> int:
    """Return the last line up to `before` that assigns to this name; 0 where the source is not there."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return 0
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name and node.lineno <= before
    ]
    return max(lines, default=0)
