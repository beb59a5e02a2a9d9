"""Detects the kind of server at `rollout.vllm.base_url` and opens an engine for it.

Invariant: users need not configure the kind. `GET /v1/models` names the owner of a model in `owned_by`; every server
other than sglang is treated as vLLM. The engine's first requests refuse other servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from ajet.config.other_models import read_api_key
from ajet.engine.contract import Sampling
from ajet.engine.remote_server import choose_error_type, limit_silence
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import UserError
from ajet_vllm.sglang_server import RemoteSglang
from ajet_vllm.vllm_server import RemoteVllm

if TYPE_CHECKING:
    from ajet.config.schema import AjetConfig
    from ajet_vllm.remote import RemoteEngine

TIMEOUT_KEY = "rollout.vllm.timeout"
SECONDS = 20.0
"""Seconds for the server's first answer."""


def open_remote(config: AjetConfig, *, vocabulary: int) -> RemoteEngine:
    """Connect to the server at `rollout.vllm.base_url`, of the kind that it is.

    Args:
        vocabulary: number of token ids of the model.

    Raises:
        ServerAwayError: the server does not answer.
        UserError: the server is unusable or lacks the logprobs needed by the run.
    """
    settings, rollout = config.rollout.vllm, config.rollout
    assert settings.base_url is not None
    key = read_api_key(settings.api_key_env) or None
    engine_type = _detect_server(settings.base_url, key, settings.api_key_env)
    # `silence`: seconds without data after which a request fails. `setting_name` names their setting in errors.
    silence, setting_name = limit_silence(settings.timeout, TIMEOUT_KEY, rollout.episode_timeout)
    engine = engine_type(
        settings.base_url,
        vocabulary=vocabulary,
        max_model_len=rollout.max_model_len,
        api_key=key,
        silence=silence,
        named=setting_name,
    )
    engine.require_logprobs(Sampling(1, rollout.temperature, rollout.top_p, rollout.top_k))
    return engine


def _detect_server(base_url: str, key: str | None, key_name: str) -> type[RemoteSglang] | type[RemoteVllm]:
    """Return the engine class for a server, by the owner that it names for its model.

    A server with an unknown answer counts as vLLM: the engine's first request then says what is wrong.

    Args:
        key: the API key, or None.
        key_name: the environment variable with the key, for the error.

    Raises:
        ServerAwayError: the server does not answer.
        UserError: the address is invalid, or the server refuses the key.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(base_url=root, headers={"Authorization": f"Bearer {key}"} if key else {}) as client:
            answer = client.get("/v1/models", timeout=SECONDS)
        if answer.status_code in (401, 403):
            raise _build_key_error(root, answer.status_code, key_name, given=key is not None)
        owner = str(load_json(answer.content)["data"][0].get("owned_by", "")) if answer.status_code == 200 else ""
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise choose_error_type(error)(
            f"No inference server answers at this address: {type(error).__name__}: {error}",
            where=f"ajet.rollout.vllm.base_url: {root}",
            expected="the URL of `vllm serve MODEL` or of `sglang serve --model-path MODEL`",
        ) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        owner = ""  # not a known server; the engine's first request reports the reason
    return RemoteSglang if owner == "sglang" else RemoteVllm


def _build_key_error(url: str, status: int, key_name: str, *, given: bool) -> UserError:
    """Return the error for a missing or wrong API key.

    Args:
        status: the response's HTTP status.
        key_name: the environment variable with the key.
        given: True if a key was sent.
    """
    return UserError(
        f"The server {'refuses this API key' if given else 'requires an API key'} (status {status}).",
        where=f"ajet.rollout.vllm.base_url: {url}",
        expected=f"the server's API key in the environment variable {key_name} (ajet.rollout.vllm.api_key_env)",
        do=f"Set {key_name}, in the environment or in .env, to the key that the server was started with (--api-key).",
    )
