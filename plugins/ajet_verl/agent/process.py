"""The one host of an agent-loop process, behind verl's servers.

Invariant: it is made by the first session that comes, and ends with the process.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

from ajet.environment.pinned import ToolPins
from ajet.record.run_directory import redactor_of
from ajet.tokens.image_tokens import ImageTokens
from ajet_ray.host import Host
from ajet_ray.mailbox import Sender
from ajet_ray.shipped_experiment import KEY, restore_experiment
from ajet_verl.agent.engine import ServerEngine

_lock = threading.Lock()
_host: Host | None = None


def open_host(config: Any, client: Any, tokenizer: Any, processor: Any = None) -> Host:
    """This process's host. `config`: verl's whole config; `client`: its client for its servers; `processor`: of a model
    that sees images."""
    global _host
    with _lock:
        if _host is None:
            sender = Sender()
            sender.introduce("agent loop")
            about = config.data[KEY]
            engine, images = build_engine(config, client, tokenizer, processor)
            experiment = restore_experiment(about)
            pins = ToolPins(sender.pin, redactor_of(experiment).tree)
            callbacks = sender.post_async, sender.grant
            _host = Host(experiment, about["run_id"], engine, tokenizer, *callbacks, images, pins)
            freeze_garbage()
        return _host


def build_engine(
    config: Any, client: Any, tokenizer: Any, processor: Any = None
) -> tuple[ServerEngine, ImageTokens | None]:
    """verl's servers as this process's engine, and how their model is shown images. The arguments are `host_of`'s."""
    rollout = config.actor_rollout_ref.rollout
    longest = int(rollout.max_model_len or rollout.prompt_length + rollout.response_length)
    images = ImageTokens(processor) if processor is not None else None
    size = len(tokenizer)
    return ServerEngine(client, max_model_len=longest, vocabulary=size, server=rollout.name, images=images), images


def freeze_garbage() -> None:
    """Else each full collection of garbage looks through verl's half a million objects while nobody answers."""
    gc.collect()
    gc.freeze()
