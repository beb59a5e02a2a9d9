"""Makes the pictures of the docs by the program itself: docs/debug.svg, plan.svg, eval.svg, viewer_*.png; and a
tutorial's curve out of a run of it.

    python scripts/pictures.py                       all; two minutes on a quiet machine
    python scripts/pictures.py --from FOLDER         those of the viewer again, from a folder that --keep left
    python scripts/pictures.py --keep                and leave the folder
    python scripts/pictures.py --curve RUN TUTORIAL  TUTORIAL/curve.png, of the run in the folder RUN
    python scripts/pictures.py --seeds FILE TUTORIAL TUTORIAL/curve.png, of the runs in the rows of FILE, by seed

Invariant: nothing is drawn by hand. A terminal's picture is what the console printed, a page's what Chromium shows of
`ajet view`, both of the tool template on its tiny model, in a folder of its own. A tutorial's curve is what a run
by its README recorded, in few colours; `docs/quickstart_curve.png` is the `metrics.png` of a `make quickstart`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DEMO = Path("/tmp/ajet-demo")
"""Stands in the pictures."""
COLUMNS = 120
SIZE = {"width": 1280, "height": 800}
CONF = ("--conf", "my_agent/tool.yaml")
COLOURS = 32
"""Of a curve: a picture of them takes a quarter of the bytes."""
FEW = ("rollout.num_repeat=3", "debug.debug_first_n_tasks=1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--curve", nargs=2, type=Path, metavar=("RUN", "TUTORIAL"))
    parser.add_argument("--seeds", nargs=2, type=Path, metavar=("FILE", "TUTORIAL"))
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)  # a child's: one command, in its own process
    options, arguments = parser.parse_known_args()
    if options.record:
        return record(options.record, arguments)
    if options.curve:
        return curve(*options.curve)
    if options.seeds:
        return seed_curves(*options.seeds)
    if options.folder:
        return viewer(options.folder)
    DEMO.mkdir()
    try:
        terminal(DEMO)
        viewer(DEMO)
    finally:
        if not options.keep:
            shutil.rmtree(DEMO)


def terminal(folder: Path) -> None:
    """The three commands that a person meets before and after a training."""
    ajet(folder, "init", "my_agent", "--template", "tool")
    recorded(folder, "debug", *CONF, "--backbone", "debug", *FEW)
    recorded(folder, "plan", "plan", *CONF)
    ajet(folder, *CONF, "--backbone", "local")
    recorded(folder, "eval", "eval", "tool", "--model", "base", "--model", "best")


def ajet(folder: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ajet", *arguments], cwd=folder, env=environment(), check=True)


def recorded(folder: Path, picture: str, *arguments: str) -> None:
    command = [sys.executable, __file__, "--record", str(DOCS / f"{picture}.svg"), *arguments]
    subprocess.run(command, cwd=folder, env=environment(), check=True)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}


def record(picture: Path, arguments: list[str]) -> None:
    """Run `ajet ARGUMENTS` here and keep what its console printed."""
    from ajet.cli import launcher
    from ajet.record.console import console

    printed = console.print

    def wrapped(*told: Any, soft_wrap: bool = False, **how: Any) -> None:
        printed(*told, **how)  # a picture does not wrap what a terminal would

    console.print = wrapped  # type: ignore[method-assign]
    console.record = True
    code: int | str | None = 0
    try:
        launcher.main(arguments)
    except SystemExit as ended:
        code = ended.code
    svg = console.export_svg(title=f"ajet {' '.join(each for each in arguments if each not in FEW)}")
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S))  # which a reader's browser would fetch
    sys.exit(code)


def curve(run: Path, tutorial: Path) -> None:
    """`curve.png` in the tutorial's folder: what the run's `metrics.jsonl` says."""
    from ajet.record.curve import draw_png

    picture = tutorial / "curve.png"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    draw_png(rows, picture, title=run.name)
    reduce_colours(picture)


def seed_curves(results: Path, tutorial: Path) -> None:
    """Draw the held-out and the training reward of every recorded run, one panel per example, one colour per seed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    runs: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, results.read_text().splitlines()):
        if row["stage"] == "rl":
            runs.setdefault(row["example"], []).append(row)
    figure = Figure(figsize=(3.4 * len(runs), 3.2), dpi=120, layout="constrained")
    for axes, (example, rows) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        for row, colour in zip(rows, ("#2a5f9e", "#c8553d", "#4f8a4c"), strict=False):
            steps, rewards = [int(step) for step in row["held_out"]], list(row["held_out"].values())
            axes.plot(range(1, len(row["training_reward"]) + 1), row["training_reward"], ".", color=colour, alpha=0.35)
            axes.plot(steps, rewards, "o-", color=colour, markersize=4, label=f"seed {row['seed']}")
        axes.set(title=example, xlabel="training step", ylim=(0, 1.03))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#e6e6e6")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.supylabel("reward")
    figure.savefig(tutorial / "curve.png")
    reduce_colours(tutorial / "curve.png")


def reduce_colours(picture: Path) -> None:
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


def viewer(folder: Path) -> None:
    """A run's page, an episode's tokens, and what was learned of the held-out tasks."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    html = folder / "run.html"
    ajet(folder, "view", "tool", "--html", str(html))
    files = (folder / "launcher_record/tool/episodes").glob("step-*.jsonl")
    last = max((path for path in files if path.stem.count(".") == 0), key=lambda path: int(path.stem[5:]))
    episode = next(row["uuid"] for row in map(json.loads, last.open()) if len(row["calls"]) > 1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport=SIZE).new_page()
        for name, place in (
            ("run", "run/tool"),
            ("tasks", "run/tool/tasks"),
            ("tokens", f"run/tool/episode/{episode}"),
        ):
            page.goto(f"{html.as_uri()}#/{place}")
            page.wait_for_timeout(2000)
            if name == "tokens":
                page.get_by_text("Tokens", exact=True).first.scroll_into_view_if_needed()
                page.mouse.wheel(0, 400)
                page.wait_for_timeout(500)
            page.screenshot(path=DOCS / f"viewer_{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
