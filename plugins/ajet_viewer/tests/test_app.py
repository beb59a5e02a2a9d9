"""The viewer's answers: what runs say, whatever state they are in, and nothing else of the disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from ajet.config import load_experiment
from ajet.record import RunDirectory
from ajet.record.episodes import EpisodeFiles
from ajet.record.image_text import text_of
from ajet.record.live_status import read_live_status
from ajet.schema.call import full_ids
from ajet_viewer.app import Views, build_app, read_metrics
from ajet_viewer.config_page import build_config_page
from ajet_viewer.episode_page import build_episode_page, build_token_window, list_token_lines
from ajet_viewer.episode_table import EpisodeTable
from ajet_viewer.export import build_frozen_page, bundle_scripts
from ajet_viewer.library import Library
from ajet_viewer.notes import read_notes
from ajet_viewer.table_filter import FilterError, TableFilter, select_rows
from ajet_viewer.task_matrix import build_reward_bins, build_task_matrix
from tests.support.record_fixtures import episode
from tests.support.viewer_fixtures import HOSTILE, IMAGE, add_step, busy, long_episode, played, with_image, write_run

pytestmark = pytest.mark.slow


def spell(ids):
    return [f"t{number} " for number in ids]


def client_of(root: Path, *, key: str | None = None, hosts: frozenset[str] = frozenset()) -> TestClient:
    return TestClient(build_app(Views(Library.of(root), lambda folder: spell), hosts=hosts, key=key))


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "one" / "debug" / "20260101", steps=1)
    write_run(tmp_path / "two", steps=1, outcome=None)
    (tmp_path / "not a run").mkdir()
    return tmp_path


def test_the_index_lists_runs_and_those_inside_them(root):
    rows = {row["name"]: row for row in client_of(root).get("/api/runs").json()["runs"]}
    assert set(rows) == {"one", "two", "one/debug/20260101"}
    assert (rows["one"]["state"], rows["one"]["step"], rows["one"]["steps"], rows["one"]["train/reward"]) == (
        "finished", 3, 9, 0.3,
    )  # fmt: skip
    assert rows["two"]["state"] == "unknown"


def test_runs_have_the_settings_in_which_they_differ(root):
    for name, rate in (("one", 1e-5), ("two", 4e-5)):
        training = {"ajet.trainer_common.optim.lr": rate, "ajet.rollout.num_repeat": 8, "ajet.experiment_name": name}
        (root / name / "run.json").write_text(json.dumps({"run_id": "r", "backbone": "local", "training": training}))
    client = client_of(root)
    found = client.get("/api/runs").json()
    assert found["keys"] == ["ajet.trainer_common.optim.lr"]
    assert {row["name"]: row["settings"] for row in found["runs"]} == {
        "one": {"ajet.trainer_common.optim.lr": 1e-5},
        "two": {"ajet.trainer_common.optim.lr": 4e-5},
        "one/debug/20260101": {},
    }
    (root / "two" / "run.json").write_text("{broken")
    assert client.get("/api/runs").json()["keys"] == []


HERE = {"origin": "http://testserver", "content-type": "application/json"}


def test_a_note_is_kept_in_the_runs_folder_by_who_has_read_what_is_there(root):
    client = client_of(root)
    before = (root / "one" / "status.json").read_bytes(), (root / "one" / "metrics.jsonl").read_bytes()
    note = {"note": "the one\nwe keep <b>", "tags": [" paper", "paper", "", "x"], "edit": 0}
    kept = client.put("/api/notes/one", headers=HERE, content=json.dumps(note))
    assert kept.json() == {"note": "the one\nwe keep <b>", "tags": ["paper", "x"], "edit": 1}
    assert json.loads((root / "one" / "notes.json").read_text()) == kept.json()
    assert client.get("/api/run/one").json()["notes"] == kept.json()
    assert client.put("/api/notes/one", headers=HERE, content=json.dumps(note)).status_code == 409, "edit 0 is old"
    assert before == ((root / "one" / "status.json").read_bytes(), (root / "one" / "metrics.jsonl").read_bytes())
    page = build_frozen_page(Views(Library.of(root / "one"), lambda folder: spell), "one", spell)
    assert json.loads(page.split('id="frozen">')[1].split("</script>")[0])["run"]["notes"]["tags"] == ["paper", "x"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**HERE, "origin": "http://evil.example"}, 403),
        ({**HERE, "origin": "http://testserver:9999"}, 403),  # the cookie's host, another server
        ({**HERE, "origin": "null"}, 403),
        ({"content-type": "application/json"}, 403),
        ({**HERE, "content-type": "text/plain"}, 415),  # what a page elsewhere may send unasked
        ({**HERE, "host": "other.example", "origin": "http://other.example"}, 403),
    ],
)
def test_a_note_comes_from_the_page_itself(root, headers, status):
    client = client_of(root, key="secret", hosts=frozenset({"testserver"}))
    assert client.put("/api/notes/one", headers=HERE, content='{"note": "x"}').status_code == 401
    client.get("/?token=secret")  # leaves the cookie
    assert client.put("/api/notes/one", headers=headers, content='{"note": "x"}').status_code == status
    assert client.post("/api/notes/one", headers=HERE, content='{"note": "x"}').status_code == 405
    assert not (root / "one" / "notes.json").exists()
    assert client.put("/api/notes/one", headers=HERE, content='{"note": "x"}').status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ("[]", 400),
        ("{", 400),
        ('{"note": 3}', 400),
        ('{"tags": "x"}', 400),
        ('{"tags": ["a,b"]}', 400),
        (json.dumps({"note": "x" * 10_001}), 400),
        (json.dumps({"tags": [str(each) for each in range(21)]}), 400),
        ("x" * 70_000, 413),
    ],
)
def test_words_that_cannot_be_kept_are_named(root, content, status):
    answer = client_of(root).put("/api/notes/one", headers=HERE, content=content)
    assert answer.status_code == status and answer.json()["error"]
    assert not (root / "one" / "notes.json").exists()


def test_two_viewers_of_a_folder_keep_each_note_or_refuse_it(tmp_path):
    """Each of two processes writes as if it were alone; what neither was refused is there, one after the other."""
    write = """
import sys
from pathlib import Path
from ajet_viewer.notes import NoteConflictError, read_notes, save_notes
kept = 0
while kept < 20:
    try:
        save_notes(Path(sys.argv[1]), {**read_notes(Path(sys.argv[1])), "note": sys.argv[2]})
    except NoteConflictError:
        continue
    kept += 1
"""
    both = [subprocess.Popen([sys.executable, "-c", write, str(tmp_path), name]) for name in ("one", "other")]
    assert [each.wait() for each in both] == [0, 0]
    assert read_notes(tmp_path)["edit"] == 40


def test_a_damaged_note_is_none_and_one_of_no_run_is_404(root):
    (root / "one" / "notes.json").write_text('{"note": ["x"]}')
    client = client_of(root)
    assert client.get("/api/run/one").json()["notes"] == {"note": "", "tags": [], "edit": 0}
    assert client.put("/api/notes/nosuch", headers=HERE, content="{}").status_code == 404
    assert client.put("/api/notes/..", headers=HERE, content="{}").status_code == 404


def test_rewards_by_step(root):
    found = client_of(root).get("/api/rewards/one").json()
    assert found["complete"] and found["splits"]["train"]["bins"] == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    assert found["splits"]["train"]["columns"][1] == {
        "first": 2, "last": 2, "counts": [1, 2, 1], "unscored": 1, "mean": 0.5,
    }  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.sampled_from(["train", "validation"]),
            st.none() | st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, float("nan")]),
        ),
        max_size=300,
    )
)
def test_every_episode_is_in_one_cell(rows):
    found = build_reward_bins({"step": step, "split": split, "reward": reward} for step, split, reward in rows)
    for split, spread in found.items():
        mine = [(step, reward) for step, each, reward in rows if each == split]
        assert len(spread["columns"]) <= 100 and len(spread["bins"]) <= 20
        for column in spread["columns"]:
            inside = [reward for step, reward in mine if column["first"] <= step <= column["last"]]
            assert sum(column["counts"]) + column["unscored"] == len(inside)
            for (low, high), count in zip(spread["bins"], column["counts"], strict=True):
                if low == high:
                    assert count == sum(1 for reward in inside if reward == low)
        assert sum(sum(column["counts"]) + column["unscored"] for column in spread["columns"]) == len(mine)


def test_what_a_run_does_now_is_what_ajet_status_says(root):
    busy(root / "one")
    client = client_of(root)
    found, said = client.get("/api/live/one").json(), json.loads(json.dumps(read_live_status(root / "one").as_json()))
    assert found == said | {"updated_age": found["updated_age"]}
    assert found["depths"] == {"leased": 5, "closed": 2} and found["rates"]["steps_per_hour"] == 360.0
    assert found["waits"] == "the trainer waits for rollout 80% of the time" and found["staleness"]
    (root / "two" / "status.json").write_text("[")
    assert client.get("/api/live/two").status_code == 422 and client.get("/api/live/no").status_code == 404


def test_one_run_alone_is_all_there_is(root):
    client = client_of(root / "one")
    assert {row["name"] for row in client.get("/api/runs").json()["runs"]} == {"one", "one/debug/20260101"}
    assert client.get("/api/run/two").status_code == 404


@pytest.mark.parametrize(
    "name", ["../outside", "..", "one/../two/..", "/etc", "linked", "not a run", "one/episodes", "%2e%2e"]
)
def test_no_path_outside_of_the_folder_is_read(root, tmp_path_factory, name):
    outside = write_run(tmp_path_factory.mktemp("elsewhere") / "outside")
    (root / "linked").symlink_to(outside)
    client = client_of(root)
    for kind in ("run", "metrics", "config", "episodes", "episode/e00100/of", "raw/e00100/of"):
        assert client.get(f"/api/{kind}/{name}").status_code == 404
    assert client.get("/page/../app.py").status_code == 404
    assert client.get("/page/%2e%2e/app.py").status_code == 404


def test_metrics_go_on_from_where_they_were(root):
    client = client_of(root)
    first = client.get("/api/metrics/one?start=0").json()
    assert [row["step"] for row in first["rows"]] == [1, 2, 3]
    with (root / "one" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/re')  # being written
    again = client.get(f"/api/metrics/one?start={first['next']}").json()
    assert again == {"rows": [], "next": first["next"], "reset": False, "damaged": 0}
    with (root / "one" / "metrics.jsonl").open("a") as file:
        file.write('ward": 0.5}\n')
    assert client.get(f"/api/metrics/one?start={first['next']}").json()["rows"] == [{"step": 4, "train/reward": 0.5}]
    (root / "one" / "metrics.jsonl").write_text('{"step": 1}\n')  # a resumed run cuts it
    cut = client.get(f"/api/metrics/one?start={first['next']}").json()
    assert cut["reset"] and cut["rows"] == [{"step": 1}]


def test_lists_of_positions_are_no_part_of_the_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "tasks": [0], "waiting": [1], "given_up": {"2": ["no"]}}\n')
    assert read_metrics(tmp_path, 0)["rows"] == [{"step": 1}]


def test_episodes_are_filtered_sorted_and_told_apart(root):
    client = client_of(root)

    def rows(query):
        return client.get(f"/api/episodes/one?{query}").json()["rows"]

    assert [row["step"] for row in rows("limit=100")] == [3] * 5 + [2] * 5 + [1] * 5
    assert [row["reward"] for row in rows("step=2&sort=-reward")] == [1.0, 0.5, 0.5, 0.0, None]
    assert [row["reward"] for row in rows("step=2&sort=reward")] == [0.0, 0.5, 0.5, 1.0, None]
    assert {row["uuid"] for row in rows("reward=0.9..")} == {"e00111", "e00211", "e00311"}
    assert {row["status"] for row in rows("status=failed")} == {"failed"}
    assert len(rows("task=t1&step=1..2")) == 4 and len(rows("agent=solver")) == 12 and rows("agent=nobody") == []
    assert len(rows("text=1 %2B 2")) == 6, "text of the question"
    assert len(rows("text=COUNTED")) == 12, "text of the record"
    assert rows("limit=2&offset=13")[0]["step"] == 1


@pytest.mark.parametrize("query", ["sort=colour", "reward=high", "limit=x", "nosuch=1", "step=a..b"])
def test_a_condition_that_makes_no_sense_is_named(root, query):
    answer = client_of(root).get(f"/api/episodes/one?{query}")
    assert answer.status_code == 400 and query.split("=")[0] in answer.json()["error"]


def test_an_episode_and_its_tokens(root):
    client = client_of(root)
    page = client.get("/api/episode/e00111/of/one").json()
    assert {"reward": 1.0, "success": True, "reason": "counted"}.items() <= page["verdict"].items()
    assert page["verdict"]["parts"] == {"exact": 1.0, "style": None} and len(page["calls"]) == 4
    assert page["sampler"] == "machine-7"
    assert page["calls"][2]["fork"] == "template" and page["calls"][3]["error"] == "cancelled"
    episode = played(1, 1, 1, "4 = 2 + 2")
    found = client.get("/api/tokens/e00111/of/one?line=0&start=2&stop=20").json()
    ids = full_ids(episode.calls, 1)[2:20].tolist()
    assert found["ids"] == ids and found["text"] == spell(ids) and found["start"] == 2
    assert found["mask"] == [int(12 <= at < 17) for at in range(2, 20)]
    assert found["borders"] == [{"at": 12, "call": 0, "what": "reply"}, {"at": 17, "call": 1, "what": "prompt"}]
    assert client.get("/api/tokens/e00111/of/one?line=7").status_code == 404
    assert client.get("/api/episode/nosuch/of/one").status_code == 404
    raw = client.get("/api/raw/e00111/of/one")
    assert json.loads(raw.content)["uuid"] == "e00111" and "attachment" in raw.headers["content-disposition"]


def test_messages_with_images(root):
    EpisodeFiles(root / "one" / "episodes").write(9, "train", [with_image()])
    client = client_of(root)

    def found(text):
        return [
            row["uuid"] for row in client.get("/api/episodes/one", params={"step": "9", "text": text}).json()["rows"]
        ]

    (row,) = client.get("/api/episodes/one?step=9").json()["rows"]
    assert row["query"] == "[image] What colour is this? [image]", "the title of a task that has only messages"
    assert found("this?") == found("data:image/png") == found("example.org") == ["seen"]
    assert found(IMAGE[40:44]) == [], "letters of an image are no text"
    page = client.get("/api/episode/seen/of/one").json()
    assert [part["type"] for part in page["messages"][0]["content"]] == ["image_url", "text", "image_url"]
    assert page["messages"][0]["content"][0]["image_url"]["url"] == page["task"]["metadata"]["image"] == IMAGE
    policy = client.get("/").headers["content-security-policy"]
    assert "img-src data:;" in policy, "no image is fetched"


@pytest.mark.parametrize(("letters", "held"), [(0, 3), (4000, 1)])
def test_images_count_in_a_file(root, monkeypatch, letters, held):
    newest = with_image()
    newest.task.metadata["image"] = f"data:image/png;base64,{'A' * letters}"
    EpisodeFiles(root / "two" / "episodes").write(9, "train", [newest])
    monkeypatch.setattr("ajet_viewer.export.MOST_TOKENS", 150)
    page = build_frozen_page(Views(Library.of(root), lambda folder: spell), "two", spell)
    data = json.loads(page.split('id="frozen">')[1].split("</script>")[0])
    assert len(data["episodes"]) == held and data["note"] == f"a copy; {6 - held} older episodes are not in it"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("hello", "hello"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}, "b"], "a [image] b"),
        ([{"type": "refusal", "refusal": "no"}, {}], "[refusal] [part]"),
    ],
)
def test_content_as_text(content, text):
    assert text_of(content) == text


@given(st.integers(0, 30), st.integers(0, 5000))
def test_pieces_of_tokens_make_up_the_line(start, length):
    episode = long_episode(9000)
    whole = list_token_lines(episode)[0].ids.tolist()
    part = build_token_window(episode, list_token_lines(episode)[0], start * 300, start * 300 + length, None)
    assert part["ids"] == whole[start * 300 : start * 300 + min(length, 4096)]


def test_half_written_damaged_and_newer_lines_are_left_out_and_counted(root):
    file = root / "one" / "episodes" / "step-3.jsonl"
    lines = file.read_text().splitlines()
    newer = json.dumps({**json.loads(lines[1]), "schema": 99})
    file.write_text("\n".join([lines[0], "{broken", newer, lines[2]]) + '\n{"uuid": "half')
    client = client_of(root)
    found = client.get("/api/episodes/one?step=3").json()
    assert len(found["rows"]) == 3 and found["damaged"] == 1
    assert client.get("/api/episode/e00301/of/one").status_code == 422, "a newer schema is told, not guessed at"
    file.with_suffix(".bin").write_bytes(b"")
    assert "damaged" in client.get("/api/episode/e00300/of/one").json()["error"]


def test_a_run_that_grows_is_cut_and_goes_away_while_it_is_looked_at(root):
    table = EpisodeTable(root / "two")
    table.read_new_rows(wait=None)
    assert len(list(table.rows())) == 5
    add_step(root / "two", 2)
    table.read_new_rows(wait=None)
    assert [row["step"] for row, _ in table.rows()] == [2] * 5 + [1] * 5
    EpisodeFiles(root / "two" / "episodes").truncate(1)
    table.read_new_rows(wait=None)
    assert select_rows(table, TableFilter())["total"] == 5
    client = client_of(root)
    assert client.get("/api/episodes/two").json()["total"] == 5
    for path in sorted((root / "two").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert client.get("/api/episodes/two").status_code == 404
    assert {row["name"] for row in client.get("/api/runs").json()["runs"]} == {"one", "one/debug/20260101"}


def test_a_folder_without_runs(tmp_path):
    assert client_of(tmp_path).get("/api/runs").json() == {"runs": [], "only": None, "keys": []}


def test_every_answer_has_the_policy_and_other_names_are_refused(root):
    client = client_of(root, hosts=frozenset({"127.0.0.1:8000"}))
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 403
    for path in ("/", "/page/app.js", "/api/runs", "/api/run/nosuch"):
        answer = client.get(path, headers={"host": "127.0.0.1:8000"})
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert client.post("/api/runs").status_code == 405


def test_who_asks_needs_the_token(root):
    client = client_of(root, key="secret")
    assert client.get("/api/runs").status_code == 401 and client.get("/page/app.js").status_code == 401
    assert client.get("/?token=wrong").status_code == 401 and client.get("/api/runs?token=%ff").status_code == 401
    assert client.get("/api/runs?token=secret").status_code == 200
    assert client.get("/api/runs").status_code == 401
    assert client.get("/?token=secret").status_code == 200  # and leaves a cookie
    assert client.get("/api/runs").status_code == 200


def test_origins_are_those_that_the_run_began_with(tmp_path):
    """As `ajet config why` says them: of flags, overrides, a backbone's layer and lines of the YAML."""
    (tmp_path / "x.yaml").write_text("ajet:\n  model: {path: 'embedded:tiny-tools'}\n  rollout:\n    num_repeat: 8\n")
    experiment = load_experiment(tmp_path / "x.yaml", overrides=["seed=3"], backbone="local")
    with RunDirectory.open(experiment, root=tmp_path / "runs") as run:
        keys = {entry["key"]: entry["origin"] for entry in build_config_page(run.path)["keys"]}
    assert keys["ajet.rollout.num_repeat"] == "x.yaml:4:5" and keys["ajet.seed"] == "override seed=3"
    assert keys["ajet.backbone"].startswith("--backbone") and keys["ajet.rollout.temperature"] == "default"


def test_a_file_holds_the_run_and_can_run_nothing_else(tmp_path):
    write_run(tmp_path / "bad", said=HOSTILE)
    page = build_frozen_page(Views(Library.of(tmp_path / "bad"), lambda folder: spell), "bad", spell)
    assert "http://" not in page.split('id="frozen"')[0].replace("http://www.w3.org/2000/svg", "")
    assert "script-src 'sha256-" in page and "connect-src" not in page and "default-src 'none'" in page
    data = page.split('id="frozen">')[1].split("</script>")[0]
    assert (
        "<" not in data
        and HOSTILE in json.dumps(json.loads(data)["pages"], ensure_ascii=False).replace("\\\\", "\\")
        or (json.loads(data)["pages"]["e00100"]["messages"][2]["content"] == HOSTILE)
    )
    assert len(json.loads(data)["episodes"]) == 15


def test_the_bundle_holds_every_module_once():
    text = bundle_scripts()
    assert "import {" not in text and "\nexport " not in text
    names = [line.split("(")[0] for line in text.splitlines() if line.startswith(("function ", "async function "))]
    assert len(names) == len(set(names)), "two modules share a top-level name"


def test_what_the_page_shows_of_an_episode_is_plain_json():
    assert json.loads(json.dumps(build_episode_page(played(1, 0, 0, HOSTILE))))["messages"][2]["content"] == HOSTILE


def test_a_page_has_the_tool_uses_with_their_times():
    uses = build_episode_page(episode())["tool_uses"]
    assert [(use["name"], use["ended"] - use["started"], use["error"]) for use in uses] == [
        ("f", 0.25, ""), ("f", 0.25, "transport"),
    ]  # fmt: skip


def test_a_reward_says_over_how_many(tmp_path):
    (tmp_path / "run").mkdir()
    row = {"step": 1, "train/reward": 0.41, "train/episodes": 256, "train/scored": 228, "train/failed": 28}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(row | {"train/failed/environment": 28}) + "\n")
    (found,) = Library(tmp_path).runs()
    assert (found["reward_short"], found["reward_over"]) == ("(228/256)", "over 228 of 256; 28 environment")


def test_filters_read_no_nonsense():
    with pytest.raises(FilterError):
        TableFilter.from_query({"offset": "-1"})


def test_held_out_tasks_are_better_or_worse_by_one_judge() -> None:
    scored = {1: 0.0, 2: 1.0, 3: 0.0, 4: 0.0}  # the judge changed after step 2
    rows = [
        {"split": "validation", "task": "a", "query": "?", "step": step, "repeat": 0, "uuid": f"u{step}"}
        | {"reward": reward, "success": None}
        for step, reward in scored.items()
    ]
    (task,) = build_task_matrix(rows, 2)["tasks"]
    assert (task["changed"], task["before"], task["after"]) == (0, "u3", "u4") and len(task["cells"]) == 4
    (alone,) = build_task_matrix(rows[:3], 2)["tasks"]
    assert alone["changed"] == 0 and alone["after"] is None
