"""`ajet deploy` for as long as it serves, and what a model card must not say."""

import pytest

from ajet.commands import model_card
from ajet.gateway import Refused
from ajet.gateway.dialects.responses.stored import StoredResponses
from ajet.schema.errors import UserError
from ajet_deploy import deploy
from ajet_deploy.deploy import DeployOptions, serve_model


def test_only_the_newest_responses_are_kept_with_what_they_go_on_from():
    stored = StoredResponses()
    previous = None
    for number in range(10):
        output = [{"id": f"msg_{number}", "type": "message", "content": f"{number}"}]
        response = {"id": f"resp_{number}", "tools": [], "output": output}
        stored.keep(previous, [{"role": "user", "content": f"ask {number}"}], response)
        stored.called(f"call_{number}", response["id"])
        previous = stored.get(response["id"]) if number % 2 == 0 else None  # conversations of two
    stored.keep_newest(2)
    assert [stored.find(f"resp_{number}") is not None for number in range(10)] == [False] * 8 + [True] * 2
    assert [item["content"] for item in stored.get("resp_9").conversation()] == ["ask 8", "8", "ask 9"]
    assert stored.item("msg_8") and stored.item("msg_9") and stored.item("msg_1") is None
    assert stored.reply_of("call_9") == "resp_9"
    with pytest.raises(Refused, match="not found"):
        stored.get("resp_0")


def test_the_key_of_a_dotenv_file_is_the_one(tmp_path, monkeypatch):
    monkeypatch.setenv(deploy.KEY, "is put back after the test")
    monkeypatch.delenv(deploy.KEY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"{deploy.KEY}=short\n")
    monkeypatch.setattr(deploy, "find_training_run", lambda *_: tmp_path / "record" / "run")
    with pytest.raises(UserError, match="AJET_API_KEY is not a valid key"), serve_model(DeployOptions("run", tmp_path)):
        pass


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("http://10.0.0.7:8000/v1", "(an address)"),
        (["postgres://me@db.mine/x", "/home/me/data/rows.jsonl"], "['(an address)', 'rows.jsonl']"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ],
)
def test_a_card_names_no_address_and_no_folder(value, told):
    assert model_card.flatten_text(value) == told


def test_a_number_that_is_none_does_not_stop_a_card(tmp_path):
    (tmp_path / "evaluation.json").write_text('{"label": "m"}')
    (tmp_path / "metrics.jsonl").write_text('{"validation/reward": "NaN", "validation/success_rate": 0.5}\n')
    assert list(model_card.describe_evaluation(tmp_path, tmp_path.name)) == [f"- {tmp_path.name}, m: success_rate 0.5"]
