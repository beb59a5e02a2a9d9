"""`ajet env try|plan|render`: tools by hand, what they cost, and manifests that agree with themselves."""

from __future__ import annotations

import sys
from copy import deepcopy
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from ajet.schema.errors import UserError
from ajet_environments.deployment import read_description
from ajet_environments.hosting.kubernetes import render_kubernetes
from ajet_environments.hosting.trial import call_by_hand, plan_episodes
from tests.support.manifest_faults import find_faults

NOTES = Path(__file__).parents[3] / "tests" / "support" / "notes_server.py"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("AJET_STATE", str(tmp_path))
    monkeypatch.delenv("SOME_KEY", raising=False)
    (tmp_path / "notes_server.py").write_text(NOTES.read_text())
    made = tmp_path / "notes.yaml"
    made.write_text(
        f"mcpServers:\n  notes: {{command: {sys.executable}, args: [-I, notes_server.py], instances: 8}}\n"
        "  paid: {command: nothing, requires: [SOME_KEY]}\ncapacity: 8\n"
    )
    return made


def test_tools_are_listed_and_called_by_hand(file, capsys):
    call_by_hand(str(file), None, "{}")
    shown = capsys.readouterr().out
    assert "note(text)  Keep a note." in shown and "paid is off: it needs the environment variables SOME_KEY" in shown
    call_by_hand(str(file), "note", '{"text": "hello"}')
    first, *_, cost = capsys.readouterr().out.splitlines()[-2:]
    assert first == "hello" and "of a core" in cost and "MiB" in cost
    for tool, arguments, said in (
        ("nothing", "{}", "no tool nothing"),
        ("note", "[", "not JSON"),
        ("die", "{}", "did not answer"),
    ):
        with pytest.raises(UserError, match=said):
            call_by_hand(str(file), tool, arguments)


def test_the_plan_is_what_was_measured(file, monkeypatch):
    monkeypatch.setattr("ajet_environments.hosting.trial.measure_machine", lambda: (2, 6.0))
    console = Console(width=160, record=True, file=StringIO())
    console.print(plan_episodes(str(file), 20))
    shown = console.export_text()
    assert "9 processes" in shown and "40 cores" in shown and "80 GiB" in shown, "8 instances, and a spare one"
    assert "8: set `capacity: 20`" in shown
    assert "4 cores and 8 GiB are recommended" in " ".join(shown.split())
    assert "Docker on Apple Silicon" in shown and "4 cores and 8 GiB" in shown


def test_manifests_keep_to_the_schema_and_agree_with_themselves(file):
    validate = pytest.importorskip("kubernetes_validate")
    text = render_kubernetes(read_description(file), image="example.org/ajet:1", count=2)
    manifests = list(yaml.safe_load_all(text))
    for each in manifests:
        validate.validate(each, "1.30", strict=True)
    assert find_faults(manifests, ["notes"]) == []
    assert "SOME_KEY" in text and {each["metadata"]["name"] for each in manifests} == {"notes", "notes-sessions"}
    assert manifests[0]["data"]["notes_server.py"] == NOTES.read_text()


def test_the_secret_has_all_that_the_file_cannot_do_without(file, monkeypatch):
    """And a pod has no env file: what that says comes from the secret."""
    monkeypatch.setenv("ITS_KEY", "open sesame")
    (file.parent / "keys.env").write_text("ITS_KEY=x\n")
    entry = "{url: 'http://127.0.0.1:1/mcp', headers: {Authorization: 'Bearer ${ITS_KEY}', Lang: '${TONGUE:-en}'}}"
    file.write_text(f"mcpServers:\n  far: {entry}\nenv_file: keys.env\n")
    text = render_kubernetes(read_description(file), image="i")
    assert "--from-literal=ITS_KEY=…" in text and "open sesame" not in text
    assert "from-literal=TONGUE" not in text
    (inside,) = [yaml.safe_load(each) for each in list(yaml.safe_load_all(text))[0]["data"].values()]
    assert "env_file" not in inside and "${ITS_KEY}" in inside["mcpServers"]["far"]["headers"]["Authorization"]


def test_what_no_schema_sees_is_seen(file):
    good = list(yaml.safe_load_all(render_kubernetes(read_description(file), image="i")))
    said = {}
    for name, path, value in (
        ("selector", (1, "spec", "selector", "matchLabels", "app"), "other"),
        ("service", (2, "spec", "selector", "app"), "other"),
        ("port", (2, "spec", "ports", 0, "targetPort"), 9),
        ("probe", (1, "spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "port"), 9),
        ("config", (1, "spec", "template", "spec", "volumes", 0, "configMap", "name"), "other"),
        ("mount", (1, "spec", "template", "spec", "containers", 0, "volumeMounts", 0, "name"), "other"),
        ("limits", (1, "spec", "template", "spec", "containers", 0, "resources"), {}),
    ):
        broken = deepcopy(good)
        place = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        said[name] = find_faults(broken, ["notes"])
    assert all(said.values()), said
    assert find_faults(good) == ["Deployment notes: the secret notes does not exist"]
