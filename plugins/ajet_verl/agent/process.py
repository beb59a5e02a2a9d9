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
from ajet_ray.shipped_experiment import KEY, restored
from ajet_verl.agent.engine import ServerEngine

_lock = threading.Lock()
_host: Host | None = None


def host_of(config: Any, client: Any, tokenizer: Any, processor: Any = None) -> Host:
    """This process's host. `config`: verl's whole config; `client`: its client for its servers; `processor`: of a model
    that sees images."""
    global _host
    with _lock:
        if _host is None:
            sender = Sender()
            sender.introduce("agent loop")
            about = config.data[KEY]
            engine, images = engine_of(config, client, tokenizer, processor)
            experiment = restored(about)
            pins = ToolPins(sender.pin, redactor_of(experiment).tree)
            told = sender.posted, sender.grant
            _host = Host(experiment, about["run_id"], engine, tokenizer, *told, images, pins)
            set_verl_aside()
        return _host


def engine_of(
    config: Any, client: Any, tokenizer: Any, processor: Any = None
) -> tuple[ServerEngine, ImageTokens | None]:
    """verl's servers as this process's engine, and how their model is shown images. The arguments are `host_of`'s."""
    rollout = config.actor_rollout_ref.rollout
    longest = int(rollout.max_model_len or rollout.prompt_length + rollout.response_length)
    images = ImageTokens(processor) if processor is not None else None
    size = len(tokenizer)
    return ServerEngine(client, max_model_len=longest, vocabulary=size, server=rollout.name, images=images), images


def set_verl_aside() -> None:
    """Else each full collection of garbage looks through verl's half a million objects while nobody answers."""
    gc.collect()
    gc.freeze()
