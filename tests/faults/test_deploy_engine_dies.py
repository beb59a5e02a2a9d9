"""What a deployment answers whose engine is a process that is killed in the middle of its replies: an error in each
protocol's words, refusals while it is away, and replies once it is there again."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deployed import start_configured_deployment
from tests.support.dialect_fixtures import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Language
from tests.support.sglang_server import BEGUN, SglangProcess

pytestmark = pytest.mark.extra_slow
KEY = "the-key-of-these-tests-0123456789"
LANGUAGES = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
TOKENS = 100
"""Far more than an engine draws that is `held`."""


class Held(SglangProcess):
    """Its replies stand still, until it is begun anew."""

    held = True


@pytest.fixture
def engine() -> Iterator[SglangProcess]:
    server = Held(quiet=True)
    yield server
    server.kill()


@pytest.fixture
def base(engine: SglangProcess, tmp_path: Path) -> Iterator[str]:
    """A deployment's address, with this engine behind it."""
    rollout = {"engine": "vllm", "vllm": {"base_url": engine.url}, "max_model_len": 500}
    tree: dict[str, Any] = {"backbone": "debug", "model": {"path": "embedded:tiny-tools"}, "rollout": rollout}
    with start_configured_deployment(tree, tmp_path, KEY) as model:
        yield model.base_url


def body(language: Language, tokens: int, **more: Any) -> dict[str, Any]:
    limit = "max_output_tokens" if language is RESPONSES else "max_tokens"
    return {**language.plain, limit: tokens, **more}


def asked(base: str, language: Language, tokens: int = 4) -> httpx.Response:
    return httpx.post(base + language.path, json=body(language, tokens), headers=language.headers(KEY), timeout=60)


def test_an_engine_that_is_killed_in_the_middle_of_its_replies(base: str, engine: SglangProcess) -> None:
    with ExitStack() as streams:
        lines, told = [], []
        for language in LANGUAGES:
            wanted = {"json": body(language, TOKENS, stream=True), "headers": language.headers(KEY), "timeout": 60}
            answer = streams.enter_context(httpx.stream("POST", base + language.path, **wanted))
            assert answer.status_code == 200
            lines.append(answer.iter_text())
            told.append(next(lines[-1]))
        os.kill(engine.pid, signal.SIGKILL)
        whole = [first + "".join(rest) for first, rest in zip(told, lines, strict=True)]
    for language, text in zip(LANGUAGES, whole, strict=True):
        events = language.check_events(text)
        assert events and BEGUN in "".join(re.findall(r'"(?:content|text|delta)":"([^"]*)"', text)), text
        last = text.rstrip("\n").split("\n\n")[-1]
        assert "response.failed" in last if language is RESPONSES else '"error"' in last, (language, text[-600:])
        assert "[DONE]" not in text and "message_stop" not in text and "response.completed" not in text
    engine.kill()
    for language in LANGUAGES:
        refused = asked(base, language)
        assert refused.status_code >= 500, (language, refused.text)
        assert "Traceback" not in language.check_error(refused.json())["message"]
    assert httpx.get(f"{base}/models", headers=CHAT.headers(KEY)).status_code == 200
    engine.held = False
    engine.start()
    for language in LANGUAGES:
        answered = asked(base, language)
        assert answered.status_code == 200, answered.text
        language.check_reply(answered.json())
