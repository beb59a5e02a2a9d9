"""A key with a character that no header can carry is a mistake of the person's, wherever it would be sent."""

from __future__ import annotations

from typing import Any

import pytest

from ajet.commands.evaluation.models import find_served_model
from ajet.config import Experiment
from ajet.config.other_models import find_other_server, read_api_key
from ajet.engine.endpoint import EndpointEngine
from ajet.environment.chat_model import list_configured
from ajet.schema.errors import ConfigError
from ajet_vllm.server_detection import open_remote

NOBODY = "http://127.0.0.1:9/v1"


def of(tree: dict[str, Any], tmp_path) -> Experiment:
    return Experiment.from_dict({"ajet": {"model": {"path": "m"}, "rollout": tree}}, base=tmp_path)


WHO = {
    "endpoint": lambda path: EndpointEngine.from_config(
        of({"engine": "endpoint", "endpoint": {"base_url": NOBODY, "model": "m", "api_key_env": "K"}}, path).ajet
    ),
    "vllm": lambda path: open_remote(of({"vllm": {"base_url": NOBODY, "api_key_env": "K"}}, path).ajet, vocabulary=9),
    "eval": lambda path: find_served_model(NOBODY, of({"endpoint": {"api_key_env": "K"}}, path)),
    "judges": lambda path: list_configured(
        Experiment.from_dict(
            {"ajet": {"task_judge": {"judges": [{"model": "m", "base_url": NOBODY, "api_key_env": "K"}]}}}, base=path
        ).ajet.task_judge.judges,
        "task_judge.judges",
    ),
    "OpenAI's": lambda path: find_other_server(),
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("key", ["sk-\u2013dash", "sk-a\nb", "\u5bc6\u94a5"])
def test_it_is_named_before_anything_is_sent(who, key, tmp_path, monkeypatch):
    for name in ("DASHSCOPE_API_KEY", "DASHSCOPE_API_KEY_BACKUP"):
        monkeypatch.delenv(name, raising=False)
    for name in ("K", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, key)
    with pytest.raises(ConfigError, match="contains a character that") as caught:
        WHO[who](tmp_path)
    assert "the environment variable" in caught.value.where and key not in str(caught.value)


def test_a_key_without_the_line_end_that_a_file_left_is_a_key(monkeypatch):
    monkeypatch.setenv("K", "sk-right\n")
    assert read_api_key("K") == "sk-right" and read_api_key("NOT_SET") == ""
