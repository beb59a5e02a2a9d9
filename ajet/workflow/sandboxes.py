"""A sandbox of an attempt's own: opened as the experiment says, recorded, closed with the attempt.

Invariant: that code ran unconfined (`environment.sandbox: none`), the record of each such episode says; a launch warns
of it before it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import ConfigError, SandboxFailure
from ajet.schema.tool_use import ToolUse, digest_of
from ajet.workflow.resources import Resources

if TYPE_CHECKING:
    from ajet.environment.sandbox.contract import Sandbox

OPENING = "sandbox.open"
"""The name of the use that the record keeps."""


def opened_sandbox(
    config: Any, resources: Resources, record: Callable[[ToolUse], None], environment: Mapping[str, str]
) -> Sandbox:
    """See `ModelTuner.sandbox`."""
    from ajet.environment.sandbox.choose import Maker

    began = time.time()
    try:
        maker = Maker.of(config.ajet.environment, Path(config.ajet.base_dir or "."))
        sandbox = maker.open(environment)
    except ConfigError as error:
        raise SandboxFailure(f"{error.what} {error.do}".strip(), retryable=False) from error
    resources.callback(sandbox.close)
    arguments = {"mechanism": sandbox.mechanism, "confined": sandbox.mechanism != "none"}
    record(ToolUse(OPENING, arguments, "", digest_of(""), began, time.time(), server="sandbox"))
    return sandbox
