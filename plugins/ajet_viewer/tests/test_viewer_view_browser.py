"""The viewer in a real browser: Debian's Chromium, driven by Playwright. One test looks at `ajet view` in a process of
its own, the others at the same app in a thread: a command a test would be half of what they cost."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ajet.gateway.limits import admitting
from ajet.gateway.listener import Listener, listen
from ajet.record.episodes import EpisodeFiles
from ajet.record.files import append_lines
from ajet.record.logs import main_log
from ajet.record.resume import RunIdentity
from ajet.schema.addresses import list_loopback_hosts
from ajet_viewer.app import Views, build_app
from ajet_viewer.export import write_frozen_page
from ajet_viewer.library import Library
from ajet_viewer.view import find_speller
from tests.support.ajet_process import ajet, start
from tests.support.viewer_fixtures import (
    HOSTILE,
    MARK,
    add_step,
    add_validation,
    busy,
    long_episode,
    with_image,
    write_run,
)

pytestmark = pytest.mark.slow

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield opened
        opened.close()


def _wrong(message) -> bool:
    """An error, but for a request that was answered with one."""
    return message.type == "error" and "status of 4" not in message.text


@pytest.fixture
def tab(browser, request):
    """A page that fails the test for any error of its scripts or any violation of its policy.

    It is closed before the viewer that it looks at: a page asks its viewer again and again, and a request that finds
    nobody is such an error. So the viewer is set up first, whatever the order in which a test names the two."""
    for name in {"served", "served_by_command"} & set(request.fixturenames):
        request.getfixturevalue(name)
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if _wrong(message) else None)
    page.set_default_timeout(60_000)
    yield page
    context.close()
    assert not said, said


@pytest.fixture
def runs(tmp_path) -> Path:
    """A folder of two runs."""
    write_run(tmp_path / "first")
    write_run(tmp_path / "second", steps=2)
    return tmp_path


@pytest.fixture
def served(runs) -> Iterator[tuple[Path, str]]:
    """A folder of runs, and the address of a viewer of it."""
    listening = listen("127.0.0.1", 0, name="viewer", where="--port")
    port = listening.getsockname()[1]
    views = Views(Library.of(runs), find_speller)
    server = Listener(admitting(build_app(views, hosts=list_loopback_hosts("127.0.0.1", port), key="k")))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield runs, f"http://127.0.0.1:{port}/?token=k"
    server.stop()
    thread.join()


@pytest.fixture
def served_by_command(runs) -> Iterator[str]:
    """The address of `ajet view` of a folder of runs."""
    log = runs.with_suffix(".log")
    process = start("view", "--exp-dir", str(runs), "--no-browser", cwd=runs, log=log)
    try:
        while not log.read_text().endswith("\n"):
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)  # polls the output; nothing is assumed of how long it takes
        yield next(word for word in log.read_text().split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait()


def test_from_the_index_to_a_token(served_by_command, tab):
    tab.goto(served_by_command)
    tab.get_by_role("link", name="first", exact=True).click()
    tab.get_by_text("Reward, of the scored", exact=True).wait_for()
    assert tab.locator("figure.chart canvas").count() >= 3
    tab.locator("#trail").get_by_role("link", name="episodes").click()
    tab.locator("tbody tr").nth(14).wait_for()
    tab.locator("tr", has_text="What is 1 + 2?").first.get_by_role("link").first.click()
    tab.get_by_text("forked: template").first.wait_for()
    assert "policy 3 to 4 · " in (facts := tab.locator("p.facts").first.inner_text()) and "sampler machine-7" in facts
    assert tab.locator(".turn .toolcall").first.inner_text().startswith("add")
    assert tab.locator(".waterfall .bar:not(.tool)").count() == 4
    assert "add: 100 ms" in tab.locator(".bar.tool title").first.text_content(), "between the first reply and the next"
    token = tab.locator(".t.trained").first
    token.hover()
    tip = tab.locator("#tip")
    tip.wait_for()
    assert "id " in tip.inner_text() and "logprob -" in tip.inner_text() and "policy version 3" in tip.inner_text()
    assert tab.locator(".t.trained").count() == 5 + 6, "the first timeline's sampled tokens"
    tab.get_by_label("colour by").select_option("policy version")
    tab.locator(".t.v3").first.wait_for()


def test_tool_uses_are_drawn_by_their_clock(tab, served):
    _, address = served
    tab.goto(f"{address}#/run/first/episode/e00311")
    tab.locator(".tool-uses").get_by_text("transport").wait_for()
    assert tab.locator(".scorers .badge").all_text_contents() == ["f1 1", "style no score"]
    assert tab.locator(".waterfall .bar.tool.failed title").all_text_contents() == [
        "add: 20 ms after 420 ms, transport"
    ]


def test_a_click_on_a_curve_opens_the_steps_episodes(tab, served):
    _, address = served
    tab.goto(f"{address}#/run/first")
    plot = tab.locator("figure.chart .u-over").first
    plot.wait_for()
    assert tab.locator("figure.chart").first.get_attribute("data-marks") == "3: exact → f1"
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] / 2, "y": 20})
    plot.click(position={"x": box["width"] / 2, "y": 20})
    tab.get_by_text("5 episodes").wait_for()
    assert tab.get_by_label("step: 3 or 1..9").input_value() == "2"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_what_a_run_does_now_is_what_ajet_status_says(browser, served, width, scheme):
    root, address = served
    busy(root / "first")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{address}#/run/first")
    page.locator(".now .stale").wait_for()
    said = " ".join(page.locator(".now").inner_text().split())
    for told in ("leased 5, closed 2", "360 steps an hour", "the trainer waits for rollout 80% of the time"):
        assert told in said, said
    assert [text.split() for text in page.locator(".now .stale tr").all_inner_texts()] == [["0", "4"]]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_conditions_keys_and_the_way_back(tab, served):
    _, address = served
    tab.goto(f"{address}#/run/first/episodes")
    tab.locator("tbody tr").nth(14).wait_for()
    tab.keyboard.press("/")
    tab.keyboard.type("counted")
    tab.get_by_text("12 episodes").wait_for()
    tab.keyboard.press("Escape")
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    assert tab.locator("tr.at").count() == 1
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="Conversation").wait_for()
    tab.keyboard.press("Escape")
    tab.locator("tbody tr").first.wait_for()
    tab.get_by_label("reward: ..0.5").fill("nonsense")
    tab.get_by_text("a number or a range").wait_for()


def test_a_group_and_two_of_it_side_by_side(tab, served):
    _, address = served
    tab.goto(f"{address}#/run/first/group?step=2&split=train&task=t1")
    tab.get_by_text("2 episodes").wait_for()
    tab.get_by_text("advantage 0.5").wait_for()
    tab.get_by_label("choose attempt 0").check()
    tab.get_by_label("choose attempt 1").check()
    tab.get_by_role("link", name="compare the two").click()
    tab.locator("article.episode").nth(1).wait_for()


def test_runs_overlaid_and_their_configurations_compared(tab, served):
    root, address = served
    (root / "second" / "resolved.yaml").write_text("ajet:\n  seed: 4\n  rollout: {num_repeat: 8, temperature: 1.0}\n")
    tab.goto(address)
    tab.get_by_label("overlay first").check()
    tab.get_by_label("overlay second").check()
    tab.get_by_role("link", name="overlay 2 runs").click()
    tab.get_by_text("second train/reward").wait_for()
    tab.get_by_role("link", name="compare configs").click()
    tab.get_by_text("ajet.seed").wait_for()
    assert tab.locator("tbody tr").count() == 1


def test_curves_show_signs_colours_are_runs_and_what_is_always_0_is_folded(tab, served):
    root, address = served
    for name in ("first", "second"):
        row = {"step": 2, "mismatch_kl": -0.0051, "entropy": 0.5, "train/forks": 0, "train/failed": 0}
        append_lines(root / name / "metrics.jsonl", [json.dumps(row)])
    tab.goto(f"{address}#/run/first?with=second")
    chart = tab.locator("figure.chart", has_text="Mismatch of engine and trainer")
    chart.get_by_text("-0.0051 nats").first.wait_for()  # what is newest stands in the legend
    room = chart.evaluate("""(figure) => {
      const text = document.createElement("canvas").getContext("2d");
      text.font = "12px system-ui, sans-serif";
      return [figure.querySelector(".u-over").offsetLeft, text.measureText("-0.005 nats").width];
    }""")
    assert room[0] > room[1], "a sign that is cut off is another number"
    markers = "figure.chart .u-series:not(:first-child) .u-marker"
    labels = tab.locator(markers).evaluate_all("all => all.map((mark) => mark.closest('tr').textContent)")
    colours = tab.locator(markers).evaluate_all("all => all.map((mark) => mark.style.borderColor)")
    told = {("second" in label, colour) for label, colour in zip(labels, colours, strict=True)}
    assert len(told) == 2, "a run has one colour in all charts"
    tab.get_by_text("always 0: Forked calls by reason, Failures by boundary").click()
    tab.locator("figure.chart", has_text="Failures by boundary").locator("canvas").wait_for()


def test_runs_are_sorted_filtered_and_noted(tab, served):
    root, address = served
    for name, rate in (("first", 1e-5), ("second", 4e-5)):
        training = {"ajet.trainer_common.optim.lr": rate, "ajet.data.train_batch_size": len(name)}
        (root / name / "run.json").write_text(json.dumps({"run_id": "r", "backbone": "local", "training": training}))
    tab.goto(f"{address}#/run/first")
    tab.get_by_role("button", name="add a note or tags").click()
    tab.get_by_label("tags").fill("paper, keep")
    tab.get_by_label("note").fill(f"the one {HOSTILE}")
    tab.get_by_role("button", name="keep", exact=True).click()
    tab.locator(".notes .prose", has_text="<script>").wait_for()
    assert tab.locator(".notes .badge").all_inner_texts() == ["paper", "keep"]
    assert json.loads((root / "first" / "notes.json").read_text())["tags"] == ["paper", "keep"]
    tab.goto(address)
    names = tab.locator("tbody tr td:nth-child(2) > a")
    rate = tab.locator("th .sort", has_text="lr")
    rate.click()
    assert names.all_inner_texts() == ["second", "first"]
    rate.click()
    assert names.all_inner_texts() == ["first", "second"]
    for condition, found in (("lr>2e-5", "second"), ("train_batch_size=5", "first"), ("tag=paper lr<1", "first")):
        tab.get_by_label("conditions on runs").fill(condition)
        tab.get_by_text("1 of 2 runs").wait_for()
        assert names.all_inner_texts() == [found]
    tab.reload()
    tab.get_by_text("1 of 2 runs").wait_for()
    assert tab.evaluate("window.pwned") is None


@pytest.mark.extra_slow
def test_a_chart_over_the_whole_window_with_its_numbers_and_its_picture(tab, served):
    root, address = served
    for name, tokens, hours in (("first", 100, 0.5), ("second", 700, 1)):
        rows = [
            {"step": step, "time": 7e8 + 3600 * hours * step, "train/reward": step / 10, "train/sampled_tokens": tokens}
            for step in (1, 2)
        ]
        (root / name / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tab.goto(f"{address}#/run/first?with=second")
    tab.get_by_label("enlarge Reward, of the scored").click()
    large = tab.locator("dialog")
    large.get_by_label("x by").select_option("tokens")
    with tab.expect_download() as given:
        large.get_by_role("button", name="CSV").click()
    assert given.value.suggested_filename == "first_second_Reward_of_the_scored.csv"
    assert Path(given.value.path()).read_text() == (
        "tokens,first train/reward,second train/reward\n100,0.1,\n200,0.2,\n700,,0.1\n1400,,0.2\n"
    )
    large.get_by_label("x by").select_option("hours")
    with tab.expect_download() as given:
        large.get_by_role("button", name="CSV").click()
    assert Path(given.value.path()).read_text() == (
        "hours,first train/reward,second train/reward\n0,0.1,0.1\n0.5,0.2,\n1,,0.2\n"
    ), "each from its own first row on"
    with tab.expect_download() as given:
        large.get_by_role("button", name="PNG").click()
    assert Path(given.value.path()).read_bytes().startswith(b"\x89PNG")
    large.locator("figcaption > span").first.hover()
    tab.get_by_text("train/reward: mean over scored episodes").wait_for()
    assert large.bounding_box() == {"x": 0, "y": 0, "width": 1280, "height": 800}
    tab.keyboard.press("Escape")
    large.wait_for(state="detached")
    assert tab.evaluate("location.hash").startswith("#/run/first"), "Escape closed the chart, and nothing else"
    tab.reload()
    plot = tab.locator("figure.chart .u-over").first
    plot.wait_for()
    assert tab.get_by_label("x by").input_value() == "hours", "the address keeps it"
    plot.click(position={"x": plot.bounding_box()["width"] / 2, "y": 20})
    tab.get_by_text("5 episodes").wait_for()
    assert tab.get_by_label("step: 3 or 1..9").input_value() == "2", "half an hour on is its second step"
    tab.goto(f"{address}#/run/first/rewards")
    tab.locator(".spread .cell").first.wait_for()
    assert tab.locator(".spread a").count() == 3 * 4
    tab.locator(".spread .column").nth(1).locator("a").first.click()
    tab.get_by_text("1 episodes").wait_for()
    assert tab.get_by_label("reward: ..0.5").input_value() == "1"


def test_no_curve_leads_from_one_judge_to_another(tab, served):
    root, address = served
    metrics = root / "first" / "metrics.jsonl"
    rows = [
        json.loads(line) | {"judge": "a" if at < 2 else "b"} for at, line in enumerate(metrics.read_text().splitlines())
    ]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    change = {"step": 2, "files": {"judge.py": ["ajet.task_judge.judge_protocol"]}, "settings": [], "judge": True}
    RunIdentity("r", "local", {}, changes=[change]).write(root / "first")
    tab.goto(f"{address}#/run/first")
    chart = tab.locator("figure.chart", has_text="Reward")
    chart.get_by_text("train/reward, judge 2").wait_for()
    assert "3: the judge changed" in chart.get_attribute("data-marks")
    labels = chart.locator(".u-series").all_inner_texts()
    assert [sum(f"train/reward, judge {part}" in label for label in labels) for part in (1, 2, 3)] == [1, 1, 0]
    for step, found in ((1, (True, False)), (2, (True, True)), (3, (False, True)), (4, (False, True))):
        add_validation(root / "first", step, *found)
    tab.goto(f"{address}#/run/first/tasks")
    tab.get_by_text("since the judge changed after step 2 to the last 0 better, 0 worse").wait_for()


def test_a_failed_run_says_why_and_held_out_tasks_are_shown_before_and_after(tab, served):
    root, address = served
    status = json.loads((root / "second" / "status.json").read_text())
    told = {"outcome": "failed", "problem": "All 4 episodes of step 1 failed."}
    (root / "second" / "status.json").write_text(json.dumps(status | told))
    (root / "second" / "logs").mkdir()
    main_log(root / "second").write_text("earlier\nthe last words\n")
    tab.goto(f"{address}#/run/second")
    tab.get_by_text("All 4 episodes of step 1 failed.").wait_for()
    tab.get_by_text("the log's end").click()
    tab.get_by_text("the last words").wait_for()
    tab.get_by_text("2 failed episodes").click()
    tab.get_by_text("2 episodes").wait_for()
    tab.goto(f"{address}#/run/first/episodes")
    tab.locator(".answer", has_text="4 = 2 + 2").first.wait_for()
    for step, found in ((0, (True, False, False)), (3, (False, True, False))):
        add_validation(root / "first", step, *found)
    tab.goto(f"{address}#/run/first/tasks")
    tab.get_by_text("3 tasks, from the first validation to the last 1 better, 1 worse").wait_for()
    assert tab.locator("tbody tr").all_inner_texts()[0].split()[-5:-3] == ["✓", "✗"], "the lost come first"
    tab.get_by_label("only those that changed").click()
    assert tab.locator("tbody tr").count() == 2
    tab.get_by_text("before and after").first.click()
    tab.get_by_text("step 0 says 0").first.wait_for()
    tab.get_by_text("step 3 says 0").first.wait_for()


def _settings(folder: Path, **training: object) -> None:
    known = {
        "ajet.trainer_common.use_kl_loss": False,
        **{name.replace("__", "."): value for name, value in training.items()},
    }
    (folder / "run.json").write_text(json.dumps({"run_id": "r", "backbone": "local", "training": known}))


def test_runs_of_several_seeds_are_a_mean_and_a_band(tab, served):
    root, address = served
    for seed, name in enumerate(("first", "second", "third")):
        if name == "third":
            write_run(root / name, steps=2)
        _settings(root / name, ajet__seed=seed)
        row = {"step": 1, "train/reward": 0.25 * seed}
        append_lines(root / name / "metrics.jsonl", [json.dumps(row)])
    tab.goto(f"{address}#/run/first")
    tab.get_by_role("link", name="with its 2 other seeds").click()
    tab.locator("figure.chart", has_text="(3 seeds)").first.wait_for()
    tab.get_by_label("enlarge Reward, of the scored").click()
    with tab.expect_download() as given:
        tab.locator("dialog").get_by_role("button", name="CSV").click()
    _, first, second = Path(given.value.path()).read_text().splitlines()
    found = [[float(cell) for cell in line.split(",")] for line in (first, second)]
    wanted = [[1, 0.25, 0, 0.5], [2, 0.2, 0.2, 0.2]]
    assert np.allclose(found, wanted), "mean, lowest, highest, at steps that all have"
    tab.keyboard.press("Escape")
    tab.get_by_label("mean over seeds").uncheck()
    tab.locator(".u-label", has_text="third").first.wait_for()


def test_curves_that_say_nothing_are_left_out(tab, served):
    root, address = served
    _settings(root / "first")
    rows = [{"step": 4, "train/reward": 0.5, "train/success_rate": 0.5, "kl": 2e-7, "entropy": 0.5}]
    (root / "first" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tab.goto(f"{address}#/run/first")
    titles = tab.locator("figcaption > span:first-child")
    titles.filter(has_text="Entropy").wait_for()
    found = titles.all_inner_texts()
    assert not any("KL" in title or title == "Success" for title in found) and "equal to success" in found[0], found


def test_given_replies_show_their_loss_first(tab, served):
    root, address = served
    rows = [{"step": step, "loss": 1 / step, "train/rows": 8, "train/no_score": 8, "entropy": 0.1, "lr": 1e-3}
            for step in (1, 2)]  # fmt: skip
    rows += [{"step": 2, "validation/loss": 0.25, "validation/rows": 4}]
    (root / "first" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tab.goto(f"{address}#/run/first")
    titles = tab.locator("figcaption > span:first-child")
    titles.filter(has_text="Learning rate").wait_for()
    assert titles.all_inner_texts()[0] == "Loss" and not titles.filter(has_text="Failures").count()
    assert "loss 0.5" in (facts := tab.locator("p.facts").first.inner_text()) and "loss 0.25" in facts
    assert not tab.get_by_role("link", name="held-out tasks").is_visible()


def test_an_evaluation_is_a_table_of_results(tab, served):
    root, address = served
    identity = {"tasks": "t", "settings": "s", "code": "c", "sampling": "greedy"}
    for model, solved, other in (
        ("base", (False, False), {}),
        ("tuned", (True, False), {}),
        ("odd", (True, True), {"tasks": "u"}),
    ):
        folder = write_run(root / "first" / "eval" / model, steps=0)
        status = json.loads((folder / "status.json").read_text())
        (folder / "status.json").write_text(json.dumps(status | {"kind": "eval"}))
        about = {"model": model, "identity": identity | other | {"model": {"path": model}}}
        (folder / "evaluation.json").write_text(json.dumps(about))
        rate = sum(solved) / 2
        row = {"step": 0, "validation/tasks": 2, "validation/episodes": 2, "validation/scored": 2,
               "validation/failed": 0, "validation/reward": rate, "validation/success_rate": rate,
               "validation/success_low": 0.1, "validation/success_high": 0.9}  # fmt: skip
        append_lines(folder / "metrics.jsonl", [json.dumps(row)])
        add_validation(folder, 0, *solved)
    tab.goto(f"{address}#/run/first%2Feval%2Ftuned")
    tab.locator(".matrix tbody tr").nth(1).wait_for()
    assert not tab.locator("figure.chart").count()
    shown = tab.locator(".results tbody tr").all_inner_texts()
    assert len(shown) == 2 and "0 %" in shown[0] and "50.0 % (10.0 % to 90.0 %)" in shown[1], "odd had other tasks"
    tab.get_by_label("only tasks at which models differ").check()
    (row,) = tab.locator(".matrix tbody tr").all_inner_texts()
    assert row.split()[-2:] == ["✗", "✓"]


def test_long_paths_of_settings_are_read_in_one_line(browser, served):
    root, address = served
    path = "/data/shared/models/org/A-Rather-Long-Name-Instruct/checkpoints/step-{}"
    for number, name in enumerate(("first", "second")):
        _settings(root / name, ajet__model__path=path.format(number), ajet__seed=number)
    for width in (1300, 1920, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(address)
        page.locator("tbody tr").first.wait_for()
        cell = page.locator(".narrow .value" if width == 390 else "td.value", has_text="step-").first
        assert cell.inner_text().endswith(("step-0", "step-1"))
        lines = cell.bounding_box()["height"] / 20
        assert lines < (4 if width == 390 else 2) and cell.bounding_box()["x"] + cell.bounding_box()["width"] <= width
        page.close()


def test_cut_replies_are_marked_on_the_episode(tab, served):
    root, address = served
    cut = long_episode(8)
    cut.calls[0].finish, cut.calls[0].extra["cut_by"] = "length", "max_tokens"
    EpisodeFiles(root / "second" / "episodes").write(7, "train", [cut])
    tab.goto(f"{address}#/run/second/episode/long")
    tab.get_by_text("1 of 1 replies cut").wait_for()
    tab.locator(".turn", has_text="cut by max_tokens").wait_for()


def test_it_is_live_without_a_jump(tab, served):
    root, address = served
    tab.goto(f"{address}#/run/second/episodes")
    tab.get_by_text("10 episodes").wait_for()
    top = tab.locator("table").bounding_box()
    add_step(root / "second", 3)
    tab.get_by_text("15 episodes").wait_for()
    assert tab.locator("table").bounding_box()["y"] == top["y"]
    tab.goto(f"{address}#/run/second")
    tab.get_by_text("reward 0.3").wait_for()
    add_step(root / "second", 4)
    tab.get_by_text("reward 0.4").wait_for()


def test_an_empty_folder_and_an_empty_run_explain_themselves(tab, tmp_path, served):
    root, address = served
    (root / "third").mkdir()
    (root / "third" / "status.json").write_text("{}")
    tab.goto(f"{address}#/run/third")
    tab.get_by_text("Nothing measured yet").wait_for()
    tab.goto(f"{address}#/run/third/episodes")
    tab.get_by_text("none was recorded yet").wait_for()


def test_what_a_model_wrote_is_text(tab, served):
    root, address = served
    write_run(root / "bad", said=HOSTILE)
    tab.goto(f"{address}#/run/bad/episode/e00100")
    shown = tab.locator(".turn.assistant .prose").nth(0)
    shown.wait_for()
    text = tab.locator(".turn.assistant").inner_text()
    assert "<script>window.pwned = 1</script>" in text and "javascript:" in text
    assert "U+202E" in text and "U+001B" in text and "U+200B" in text, "what would turn or hide text is spelled out"
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("main a[href^=javascript]").count() == 0 and tab.locator(".turn img").count() == 0


def test_images_of_a_message_are_shown_and_none_is_fetched(tab, served):
    root, address = served
    EpisodeFiles(root / "first" / "episodes").write(9, "train", [with_image()])
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{address}#/run/first/episode/seen")
    image = tab.locator(".turn.user img")
    image.wait_for()
    tab.wait_for_function("document.querySelector('.turn.user img').naturalWidth === 6")
    assert image.count() == 1 and image.get_attribute("alt") and image.bounding_box()["height"] == 4
    said = tab.locator(".turn.user").inner_text()
    assert "What colour is this?" in said and "[image] https://example.org/a.png" in said
    assert [url for url in asked if not url.startswith((address.split("?")[0].rstrip("/"), "data:"))] == []
    tab.goto(f"{address}#/run/first/group?step=9&split=train&task=seen")
    tab.get_by_role("heading", name="[image] What colour is this?").wait_for()


def test_the_marks_of_an_image_are_one(tab, tmp_path):
    EpisodeFiles(write_run(tmp_path / "run", steps=1) / "episodes").write(9, "train", [with_image()])

    def spell(ids):
        return ["<|image_pad|>" if token == MARK else f"t{token} " for token in ids]

    write_frozen_page(Views(Library.of(tmp_path), lambda folder: spell), "run", spell, tmp_path / "run.html")
    tab.goto(f"{(tmp_path / 'run.html').as_uri()}#/run/run/episode/seen")
    tab.locator(".times").wait_for()
    assert tab.locator(".times").inner_text() == "×12" and tab.locator(".t", has_text="<|image_pad|>").count() == 1
    assert tab.locator(".t").count() == 16 + 40 - 11
    tab.locator(".t", has_text="<|image_pad|>").hover()
    tab.get_by_text("position 2 to 13").wait_for()
    assert tab.locator(".turn.user img").evaluate("image => image.naturalWidth") == 6


def test_a_line_of_ten_megabytes_opens_by_pieces(tab, served):
    root, address = served
    write_run(root / "huge", steps=1, said="x" * 10_000_000)
    tab.goto(f"{address}#/run/huge/episode/e00100")
    more = tab.get_by_role("button", name="show more").first
    more.wait_for()
    more.click()
    assert len(tab.locator(".turn.assistant .prose", has=more).inner_text()) > 200_000


def test_a_hundred_thousand_tokens_scroll(tab, served):
    root, address = served
    EpisodeFiles(root / "first" / "episodes").write(9, "train", [long_episode(100_000)])
    tab.goto(f"{address}#/run/first/episode/long")
    tab.locator(".t").nth(200).wait_for()
    tab.locator(".block").last.scroll_into_view_if_needed()
    tab.locator(".block").last.locator(".t").first.wait_for()
    assert tab.locator(".t").count() < 20_000, "what is far from the window is not in the page"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_page_fits_its_window(browser, served, width, scheme):
    root, address = served
    long = f"/home/somebody/{'models/' * 6}tuned"
    (root / "first" / "resolved.yaml").write_text(f"ajet:\n  model: {{path: {long}}}\n  {'a_long_name_' * 4}: 3\n")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    for place in (
        "",
        "#/run/first",
        "#/run/first/episodes",
        "#/run/first/tasks",
        "#/run/first/config",
        "#/run/first/rewards",
        "#/run/first/episode/e00100",
    ):
        page.goto(f"{address}{place}")
        page.locator("main h1, main .filters").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (place, width)
        if place.endswith("config"):
            value = page.locator("td.value", has_text=long)
            value.wait_for()
            assert value.evaluate("cell => cell.offsetHeight") <= (60 if width == 1280 else 140), "a column of letters"
            seen = "cell => cell.getBoundingClientRect().right <= innerWidth"
            assert page.locator("td.value").evaluate_all(f"all => all.every({seen})")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == (scheme == "dark")
    context.close()


@pytest.mark.extra_slow
def test_a_file_opens_from_disk_without_a_network(tab, tmp_path):
    write_run(tmp_path / "alone", said=HOSTILE)
    made = ajet("view", "alone", "--exp-dir", str(tmp_path), "--html", "alone.html", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    tab.context.set_offline(True)
    tab.goto((tmp_path / "alone.html").as_uri())
    tab.get_by_text("Reward, of the scored", exact=True).wait_for()  # it has one run, and opens with it
    tab.locator("#trail").get_by_role("link", name="episodes").click()
    tab.get_by_label("free text").fill("counted")
    tab.get_by_text("12 episodes").wait_for()
    tab.locator("tbody tr").first.get_by_role("link").first.click()
    tab.locator(".t.trained").first.wait_for()
    assert tab.evaluate("window.pwned") is None
