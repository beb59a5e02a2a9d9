"""One rule says what a secret is, by its name or its shape, and nothing of it reaches a file of a run; what is none is
left as it is."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
import yaml

from ajet.config import load_experiment
from ajet.record import RunDirectory
from ajet.schema import secrets
from ajet.schema.secrets import has_secret_shape, is_secret_name, replace_secret_shapes
from tests.support.record_fixtures import episode

NAMES = """
GITHUB_PAT DB_PASS PGPASSWORD OPENAIKEY SLACK_WEBHOOK_URL AUTHORIZATION SSH_PASSPHRASE MYAUTH DOTENV_PASS pass db_pass
accessToken bearer Cookie webhook api_key apiKey x-api-key HF_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID APP_KEY
SERVICE_PASSWORD LICENSE_KEY password SENTRY_DSN session_cookie auth githubPat client_secret Authorization refresh_token
dbPassword token auth_token GH_TOKEN APIKEY apikey basicAuth
"""
NO_NAMES = """
PWD OLDPWD PATH HOME max_tokens eos_token pad_token prompt_key answer_key api_key_env HF_TOKEN_PATH SSH_AUTH_SOCK author
AUTHOR compass passed tokenizer key token_level_rewards pass_at_k num_tokens keys pattern path bypass_mode image_key
token_limit micro_batch_tokens LANG patience KEYBOARD stop_token_ids monkey authority loss_aggregation
"""
SHAPES = [
    ("postgres://me:pw@db/x", "postgres://#@db/x"),
    ("see redis://:pw-1@h:6379/0.", "see redis://#@h:6379/0."),
    ("https://ghp_0123456789abcdefghij@github.com/a", "https://#@github.com/a"),
    ("key sk-proj-0123456789abcdefghij!", "key #!"),
    ("hf_abcdefghijklmnopqrstuvwxyz", "#"),
    ("AKIAIOSFODNN7EXAMPLE", "#"),
    ("xoxb-123456789012-abcdef", "#"),
    ("https://hooks.slack.com/services/T000/B000/XXXX", "https://hooks.slack.com/#"),
]
NO_SHAPES = [
    "https://me@host/a:b@c", "http://h:80/a@b", "https://me:${PW}@host", "https://{user}:{password}@host",
    "https://me:***@host", "git://git@host", "sk-learn-is-a-package-of-python", "task-0123456789abcdefghij", "hf_hub",
]  # fmt: skip


def test_names_are_read_as_words() -> None:
    assert [name for name in NAMES.split() if not is_secret_name(name)] == []
    assert [name for name in NO_NAMES.split() if is_secret_name(name)] == []


@pytest.mark.parametrize(("text", "shown"), SHAPES)
def test_a_secret_shows_itself_by_its_shape(text: str, shown: str) -> None:
    assert has_secret_shape(text) and replace_secret_shapes(text, "#") == shown


@pytest.mark.parametrize("text", NO_SHAPES)
def test_what_only_resembles_one_stays(text: str) -> None:
    assert replace_secret_shapes(text, "#") is text


def test_a_mark_of_a_shape_is_found_wherever_it_stands() -> None:
    marks = [mark for each, _ in secrets._SHAPES for mark in each]
    draw, seen = random.Random(1), set[bool]()
    for _ in range(3000):
        cut = [mark[draw.randrange(2) : len(mark) - draw.randrange(2)] for mark in draw.choices(marks, k=3)]
        text = draw.choice(["", " a", "_", "-/", "JI"]).join(cut)
        there = any(mark in text for mark in marks)
        assert secrets.has_mark(text) is there, text
        seen.add(there)
    assert seen == {True, False} and all(map(secrets.has_mark, marks))


SECTIONS = """ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  trainer_common: {total_training_steps: 1}
mine:
  pass: hunter-one
  accessToken: hunter-two
  bearer: hunter-three
  webhook: https://hooks.slack.com/services/T000/B000/hunter4
  url: https://me:hunter-five@host/a
  auth: basic
  named: ${oc.env:DATABASE_URL}
  prompt_key: question # not sk-hunter-0123456789abcdefgh
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "x.yaml").write_text(SECTIONS)
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter-six@db/x")
    monkeypatch.setenv("GITHUB_PAT", "hunter-seven")
    monkeypatch.setenv("APP_KEY", "completed")
    monkeypatch.setenv("SERVICE_PASSWORD", "assistant")
    monkeypatch.setenv("ROLE_TOKEN", "tool_result")
    monkeypatch.setenv("LICENSE_KEY", "embedded:tiny-tools")
    return tmp_path


def _messages() -> list[dict[str, object]]:
    return [
        {"role": "assistant", "content": "completed: hunter-seven, hunter-six and postgres://you:hunter8@x", "n": 1},
        {"role": "tool_result", "content": json.dumps({"GITHUB_PAT": "hunter-seven"}), "completed": "tool_result"},
    ]


def test_no_file_of_a_run_holds_a_secret_and_nothing_else_of_it_changes(project: Path) -> None:
    experiment = load_experiment(project / "x.yaml", backbone="local", exp_dir=project / "runs")
    with RunDirectory.open(experiment, root=project / "runs") as run:
        played = episode("a", messages=_messages(), status="completed", metadata={"model": "embedded:tiny-tools"})
        run.episodes.write(1, "train", [played])
        run.metrics.log(1, {"completed": 1.0}, tasks=["hunter-seven"])
        run.status.set(phase="completed")
    files = [path for path in run.path.rglob("*") if path.is_file() and path.suffix != ".bin"]
    assert [str(path) for path in files if "hunter" in path.read_text()] == []

    row = json.loads((run.path / "episodes" / "step-1.jsonl").read_text())
    assert row["status"] == "completed" and [m["role"] for m in row["messages"]] == ["assistant", "tool_result"]
    assert row["messages"][0]["content"].startswith("completed: [redacted GITHUB_PAT], [redacted DATABASE_URL] and pos")
    assert json.loads(row["messages"][1]["content"]) == {"GITHUB_PAT": "[redacted GITHUB_PAT]"}, "keys stay"
    assert "completed" in row["messages"][1]
    assert json.loads((run.path / "metrics.jsonl").read_text())["completed"] == 1.0

    resolved = yaml.safe_load((run.path / "resolved.yaml").read_text())
    assert resolved["ajet"]["model"]["path"] == "embedded:tiny-tools", "it still names the model"
    mine = resolved["mine"]
    assert (mine["auth"], mine["named"], mine["prompt_key"]) == ("basic", "${oc.env:DATABASE_URL}", "question")
    assert mine["url"] == "https://<YOUR_SECRET>@host/a"


@pytest.mark.slow
def test_a_variable_that_reads_like_a_setting_does_not_change_the_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> str:
        experiment = load_experiment(project / "x.yaml", backbone="local", exp_dir=project / "runs")
        with RunDirectory.open(experiment, root=project / "runs") as run:
            return run.run_id

    first = start()
    monkeypatch.delenv("LICENSE_KEY")
    assert start() == first


@pytest.mark.parametrize(
    "half",
    ["-eyJ", "eyJ.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY----- ", "://a:", " sk-", "glpat-", "J"],
)
def test_halves_of_secrets_are_read_in_linear_time(half):
    text = half * (200_000 // len(half))
    began = time.thread_time()
    replace_secret_shapes(text, "#")
    assert time.thread_time() - began < 2  # seconds; it was 7 for the first


@pytest.mark.slow
@pytest.mark.parametrize("at", [(1 << 20) - 40, (1 << 20) - 3, (1 << 20) + 5, 3 << 20])
def test_secrets_of_long_texts_are_found(at):
    jwt, rsa = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "-----{} RSA PRIVATE KEY-----"
    for secret in (jwt, f"a-{jwt}", rsa.format("BEGIN") + "\nMIIE-_+/=\n" * 9 + rsa.format("END")):
        text = " " * at + secret
        assert has_secret_shape(text)
        assert replace_secret_shapes(text, "#").strip().removeprefix("a-") == "#"
