"""Sections of existing YAMLs for which ours needs no switch: accepted, ignored, and said so once in the log."""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import Section, key


class InterchangeServer(Section):
    """Accepted, ignored."""

    interchange_method: Literal["ipc", "tcp"] = key("ipc", "Accepted, ignored.")
    interchange_server_port: int | str = key("auto", "Accepted, ignored.")
    num_fastapi_process: int = key(2, "Accepted, ignored.")
    max_fastapi_threads: int = key(128, "Accepted, ignored.")
    max_inference_tracker_threads: int = key(64, "Accepted, ignored.")
    already_started: Any = key(False, "Accepted, ignored.")


class TaskRunner(Section):
    """Accepted, ignored."""

    llm_infer_submit_method: Literal["async", "sync"] = key("async", "Accepted, ignored.")
    wrapper_type: Literal["asyncio", "asyncio-with-gc", "multi-processing"] = key(
        "asyncio-with-gc", "Accepted, ignored."
    )
    wrapper_multiprocessing_timeout: float = key(3600, "Accepted, ignored.")
