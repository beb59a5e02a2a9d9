"""Numbers of a run: rows, trackers, the curve, progress and what is blotted out."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from loguru import logger
from rich.console import Console

from ajet.record.curve import MetricCurve, draw_png, held_out_course, smooth_points, text_curve, training_course
from ajet.record.logs import LogFile
from ajet.record.metrics import Metrics
from ajet.record.progress import Progress
from ajet.record.secrets import Redactor, literal_secrets
from ajet.record.trackers import TrackedRun, Tracker, open_trackers
from ajet.record.trackers.console import ConsoleTracker, format_number
from ajet.schema.commands import format_extra_install


def test_rows_come_back_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.log(1, {"train/reward": 0.25, "count": 3, "loss": float("nan")}, tasks=[4, 5])
    (row,) = metrics.rows()
    assert row.pop("time") > 0
    assert row == {"step": 1, "train/reward": 0.25, "count": 3, "loss": None, "tasks": [4, 5]}


def test_truncation_forgets_later_steps_and_a_half_written_row(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(5):
        metrics.log(step, {"x": step})
    with metrics.path.open("a") as file:
        file.write('{"step": 5, "x"')
    assert [row["step"] for row in metrics.rows()] == [0, 1, 2, 3, 4]
    assert metrics.truncate(2) == 2
    metrics.log(3, {"x": 30})
    assert [(row["step"], row["x"]) for row in metrics.rows()] == [(0, 0), (1, 1), (2, 2), (3, 30)]


def test_a_tracker_that_fails_is_left_out_and_the_rows_go_on(tmp_path: Path) -> None:
    class Full(Tracker):
        def metrics(self, step: int, numbers: object) -> None:
            raise OSError(28, "No space left on device")

    class Wrong(Tracker):
        def episodes(self, *told: object) -> None:
            raise KeyError("a bug of its own")

    run = TrackedRun("p", "r", "1", tmp_path)
    metrics = Metrics(tmp_path / "metrics.jsonl", trackers=[Full(run), Wrong(run)])
    metrics.track_episodes(1, "train", [], {})
    metrics.log(1, {"x": 1})
    metrics.log(2, {"x": 2})
    assert metrics.trackers.opened == [] and len(metrics.rows()) == 2


def test_trackers_get_every_nth_step_and_every_validation(tmp_path: Path) -> None:
    class Seen(Tracker):
        steps: list[int] = []

        def metrics(self, step: int, numbers: object) -> None:
            self.steps.append(step)

    metrics = Metrics(tmp_path / "metrics.jsonl", trackers=[Seen(TrackedRun("p", "r", "1", tmp_path))], every=3)
    for step in range(1, 7):
        metrics.log(step, {"train/reward": 0.5})
    metrics.log(5, {"validation/reward": 0.5})
    assert Seen.steps == [3, 6, 5] and len(metrics.rows()) == 7


def test_the_console_shows_what_the_line_of_a_step_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = ConsoleTracker(TrackedRun("p", "r", "1", Path()))
    tracker.metrics(1, {"train/reward": 0.5, "kl": 0.00123, "train/sampled_tokens": 1500})
    tracker.metrics(1, {"validation/reward": 0.5})
    assert capsys.readouterr().out == "            kl 0.00123  tokens 1500\n"


def test_a_narrow_terminal_gets_that_line_in_several_each_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    import ajet.record.trackers.console as place

    out = io.StringIO()
    monkeypatch.setattr(place, "console", Console(file=out, width=40, height=25, force_terminal=True, no_color=True))
    ConsoleTracker(TrackedRun("p", "r", "1", Path())).metrics(
        1, {"loss": 0.5, "entropy": 0.25, "kl": 0.00123, "train/sampled_tokens": 1500}
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert len(lines) == 2 and all(line.startswith(" " * 12 + line.strip()) for line in lines)
    assert " ".join(" ".join(lines).split()) == "loss 0.5 entropy 0.25 kl 0.00123 tokens 1500"


def test_tensorboard_reads_back_what_was_logged_and_forgets_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed, values in ((None, {1: 0.1, 2: 0.2, 3: 0.3}), (1, {2: 0.5})):
        run = TrackedRun("p", "r", "1", tmp_path, resumed)
        metrics = Metrics(tmp_path / "m.jsonl", trackers=open_trackers("tensorboard", run))
        for step, value in values.items():
            metrics.log(step, {"train/reward": value, "loss": float("nan")})
        metrics.close()
    seen = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert seen.Tags()["scalars"] == ["train/reward"]
    assert [(e.step, round(e.value, 3)) for e in seen.Scalars("train/reward")] == [(1, 0.1), (2, 0.5)]


def test_an_unknown_or_missing_tracker_warns_and_the_console_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), format="{message}")
    try:
        trackers = open_trackers(["swanlab", "tensorboard"], TrackedRun("p", "r", "1", tmp_path))
    finally:
        logger.remove(sink)
    assert [type(tracker) for tracker in trackers] == [ConsoleTracker]
    assert len(said) == 2 and "swanlab" in said[0] and format_extra_install("tensorboard") in said[1]


def test_numbers_are_short() -> None:
    assert [format_number(value) for value in (3, 3.0, 0.123456, 1234567.8)] == ["3", "3", "0.123", "1.23e+06"]


def test_the_smoothed_curve_starts_at_the_first_value_and_follows_a_constant() -> None:
    assert [value for _, value in smooth_points([(1, 0.4), (2, 0.4), (9, 0.4)])] == pytest.approx([0.4, 0.4, 0.4])
    assert smooth_points([(1, 0.0), (100, 1.0)])[-1][1] > 0.99


def test_the_text_curve_rises_from_the_lower_left_to_the_upper_right() -> None:
    rows = [{"step": step, "train/reward": step / 10} for step in range(1, 11)]
    rows += [{"step": 0, "validation/reward": 0.0}, {"step": 10, "validation/reward": 1.0}, {"step": 4}]
    lines = text_curve(training_course(rows), held_out_course(rows), width=40, height=8).splitlines()
    assert lines[0] == "training reward (smoothed); o: held-out reward"
    assert lines[1].startswith("1.00 │") and lines[1].endswith("o")
    assert lines[8].startswith("0.00 │o")
    assert lines[-1].split() == ["0", "10"]
    dots = [[column for column, sign in enumerate(line) if "⠀" < sign <= "⣿"] for line in lines[1:9]]
    rightmost = [max(columns) for columns in dots if columns]
    assert len(rightmost) >= 6 and rightmost == sorted(rightmost, reverse=True)


def test_a_flat_curve_is_drawn() -> None:
    lines = text_curve(
        MetricCurve([(1, 1.0), (2, 1.0)], "reward"), MetricCurve([], ""), width=20, height=5
    ).splitlines()
    assert [line.split(" │")[0].strip() for line in lines[1:6]] == ["1.00", "", "", "", "0.00"]
    assert len(lines[1].split("│")[1]) == 20
    for value, ends in [(0.0, ["1.00", "0.00"]), (2.5, ["2.50", "0.00"]), (-2.0, ["0.00", "-2.00"])]:
        flat = text_curve(
            MetricCurve([(1, value), (2, value)], ""), MetricCurve([], ""), width=20, height=5
        ).splitlines()
        assert [flat[1].split()[0], flat[5].split()[0]] == ends

    near = text_curve(
        MetricCurve([(1, 0.0817), (2, 0.0819)], "loss"), MetricCurve([], ""), width=20, height=5
    ).splitlines()
    assert near[1].split()[0] != near[5].split()[0], "its two ends are told apart"


def survivors(step: int, split: str, succeeded: int, failed: int, reward: float = 1.0) -> dict[str, float]:
    """A row of 64 attempts: those that would have been wrong failed, and every other one was right."""
    scored = 64 - failed
    numbers = {"episodes": 64, "scored": scored, "reward": reward, "success_rate": succeeded / 64}
    numbers |= {"tasks": 64, "success_low": succeeded / 128, "success_high": (succeeded + 1) / 65}
    return {"step": step} | {f"{split}/{name}": value for name, value in numbers.items()}


def test_failing_where_one_would_be_wrong_draws_no_better_curve() -> None:
    rows = [survivors(step, "train", 64 - 10 * step, 10 * step) for step in (1, 2, 3)]
    rows += [survivors(step, "validation", 64 - 10 * step, 10 * step) for step in (0, 3)]
    training, held_out = training_course(rows), held_out_course(rows)
    assert [value for _, value in training.points] == [54 / 64, 44 / 64, 34 / 64], "the survivors' is 1 in each"
    assert held_out.points == [(0, 1.0), (3, 34 / 64)] and held_out.errors == ([0.5, 17 / 64], [0.0, 35 / 65 - 34 / 64])
    assert text_curve(training, held_out).startswith(
        "training success, of all attempts (smoothed); o: held-out success, of all tasks (34 to 64 of 64 scored)\n"
    )


def test_a_reward_that_is_no_success_is_drawn_and_said_to_be_of_those_scored() -> None:
    rows = [survivors(step, "train", 0, 10, reward=0.3) for step in (1, 2)]
    assert training_course(rows).label == "training reward, of scored attempts"
    unjudged = [survivors(step, "validation", 0, 10, reward=0.3) | {"validation/success_rate": None} for step in (0, 2)]
    held_out = held_out_course(unjudged)
    assert held_out.label == "held-out reward (54 of 64 scored)" and held_out.points == [(0, 0.3), (2, 0.3)]


def test_the_picture_is_a_png_of_some_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"step": s, "train/reward": s / 10, "validation/reward": 0.5} for s in range(10)]
    draw_png(rows, tmp_path / "metrics.png", title="demo")
    content = (tmp_path / "metrics.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


def test_plain_progress_prints_whole_lines_without_control_characters() -> None:
    out = io.StringIO()
    with (
        Progress(Console(file=out, width=200), line_every_s=0.0) as progress,
        progress.bar("step 1", 3, "episodes") as bar,
    ):
        bar.advance(note="reward 0.5")
        bar.advance(2)
    lines = out.getvalue().splitlines()
    assert lines[0] == "step 1: 1/3 episodes after 0 s, reward 0.5" and lines[-1].startswith("step 1: 3/3")
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_a_count_without_a_total() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    with Progress(console, line_every_s=0.0) as progress, progress.bar("validation", None, "episodes") as bar:
        bar.advance(17)
    assert out.getvalue().startswith("validation: 17 episodes after 0 s\n")


def test_plain_progress_keeps_quiet_about_short_work() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=200)) as progress, progress.bar("step 1", 3) as bar:
        bar.advance(3)
    assert out.getvalue() == ""


def test_progress_on_a_terminal_draws_bars(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, force_interactive=True)
    with Progress(console) as progress, progress.bar("rollout", 2, "episodes") as bar:
        bar.advance(2, note="reward 1")
        assert progress._rich_progress is not None
        progress._rich_progress.refresh()
    assert "2/2" in out.getvalue() and "rollout" in out.getvalue()


def test_only_secret_values_are_blotted_out() -> None:
    environment = {
        "OPENAI_API_KEY": "sk-abcdefgh",
        "HF_TOKEN": "hf_12345678",
        "TOKENIZERS_PARALLELISM": "disabled!",
        "MAX_TOKENS": "1234567890",
        "SSL_KEY": "/",
        "DB_PASSWORD": "short",
    }
    redact = Redactor(environment, literal_secrets({"judge": {"api_key": "literal-secret", "model": "m"}}))
    text = "sk-abcdefgh hf_12345678 disabled! 1234567890 / short literal-secret"
    assert redact(text) == (
        "[redacted OPENAI_API_KEY] [redacted HF_TOKEN] disabled! 1234567890 / short [redacted api_key]"
    )
    assert redact.interpolated("k: sk-abcdefgh") == "k: ${oc.env:OPENAI_API_KEY}"


def test_the_log_file_holds_no_secret_even_in_a_traceback(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "ajet.log", Redactor({"MY_TOKEN": "tok-12345678"}))
    try:
        token = "tok-12345678"
        raise ValueError(f"bad {token}")
    except ValueError:
        logger.exception("failed with {}", "tok-12345678")
    log.close()
    logger.warning("after the end")
    text = log.path.read_text()
    assert "ValueError" in text and "[redacted MY_TOKEN]" in text
    assert "tok-12345678" not in text and "after the end" not in text
