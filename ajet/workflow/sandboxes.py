"""A sandbox of an attempt's own: opened as the experiment says, recorded, closed with the attempt.

Invariant: that code ran unconfined (`environment.sandbox: none`), the record of each such episode says; a launch warns
of it before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ajet.config.references import class_of
from ajet.schema.errors import SandboxFailure, UserError
from ajet.schema.sandbox import Sandbox, SandboxMaker
from ajet.schema.tool_use import ToolUse, digest_of
from ajet.workflow.resources import Resources

OPENING = "sandbox.open"
"""The name of the use that the record keeps."""


def find_sandbox_maker(config: Any) -> SandboxMaker:
    """Return what opens sandboxes of the kind that `environment.sandbox` names. Raises UserError."""
    base = Path(config.ajet.base_dir or ".")
    kind = class_of(
        config.ajet.environment.sandbox,
        "sandbox",
        base=base,
        what="ajet.environment.sandbox",
        does=("of", "open"),
        like="ajet.schema.sandbox.SandboxMaker",
    )
    maker: SandboxMaker = kind.of(config.ajet.environment, base)
    return maker


def opened_sandbox(
    config: Any, resources: Resources, record: Callable[[ToolUse], None], environment: Mapping[str, str]
) -> Sandbox:
    """See `ModelTuner.sandbox`."""
    began = time.time()
    try:
        sandbox = find_sandbox_maker(config).open(environment)
    except UserError as error:
        raise SandboxFailure(f"{error.what} {error.do}".strip(), retryable=False) from error
    resources.callback(sandbox.close)
    arguments = {"mechanism": sandbox.mechanism, "confined": sandbox.mechanism != "none"}
    record(ToolUse(OPENING, arguments, "", digest_of(""), began, time.time(), server="sandbox"))
    return sandbox
