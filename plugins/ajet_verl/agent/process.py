"""Creates the host of an agent-loop process: gateway, workflow and judge in front of verl's servers.

Invariant: the first session creates the host, and the host lives until the process ends.
"""

from __future__ import annotations

import gc
import threading
from functools import cache
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
    """Return the host of this process, which runs its episodes. The first call creates it.

    Args:
        config: verl's complete config.
        client: verl's client for its inference servers.
        processor: the processor of a vision model; None for a text model.
    """
    global _host
    with _lock:
        if _host is None:
            sender = Sender()
            sender.introduce("agent loop")
            shipped_experiment = config.data[KEY]
            engine, images = build_engine(config, client, tokenizer, processor)
            experiment = restore_experiment(shipped_experiment)
            tool_pins = ToolPins(sender.pin, redactor_of(experiment).tree)
            trainer_callbacks = sender.post_async, sender.grant
            _host = Host(
                experiment, shipped_experiment["run_id"], engine, tokenizer, *trainer_callbacks, images, tool_pins
            )
            freeze_garbage()
        return _host


def build_engine(
    config: Any, client: Any, tokenizer: Any, processor: Any = None
) -> tuple[ServerEngine, ImageTokens | None]:
    """Create the engine that samples from verl's servers.

    Returns:
        The engine, and the image tokens of a vision model (None for a text model). The arguments are those of
        `open_host`.
    """
    rollout = config.actor_rollout_ref.rollout
    max_length = int(rollout.max_model_len or rollout.prompt_length + rollout.response_length)
    images = ImageTokens(processor) if processor is not None else None
    engine = ServerEngine(
        client,
        max_model_len=max_length,
        vocabulary=len(tokenizer),
        server=rollout.name,
        images=images,
        routed_shape=find_routed_shape(config),
    )
    return engine, images


@cache
def _read_routed_shape(path: str, trust_remote_code: bool) -> tuple[int, int]:
    """Read (layers, experts per token) from the model's configuration at `path`."""
    from transformers import AutoConfig

    text_config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code).get_text_config()
    return int(text_config.num_hidden_layers), int(text_config.num_experts_per_tok)


def find_routed_shape(config: Any) -> tuple[int, int] | None:
    """Return (layers, experts per token) of the model if verl's `config` replays experts, else None."""
    if not config.actor_rollout_ref.rollout.get("enable_rollout_routing_replay"):
        return None
    model = config.actor_rollout_ref.model
    return _read_routed_shape(str(model.path), bool(model.get("trust_remote_code")))


def freeze_garbage() -> None:
    """Exclude all present objects from garbage collection.

    verl has half a million of them, and a collection over them would block replies.
    """
    gc.collect()
    gc.freeze()
