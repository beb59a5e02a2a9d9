"""Viewer: the first paint of a run with 100,000 episodes against a static page; scrolling; what looking costs a run.

- First paint: `ajet view` on a record of 100,000 episodes, against the same page served by Python's own static server
  with nothing behind it, in one Chromium, taking turns. Limit: 3 times.
- Scrolling: the token view of an episode of 200,000 tokens, from top to bottom; the longest time between two frames.
  Limit: 50 ms. On a machine without a GPU Chromium draws on the CPU: the same scroll over a static text of the same
  size is printed beside it.
- Cost: CPU seconds of the viewer's process while a page polls a run for ten seconds. Limit: 1 % of a core.

    python benchmarks/bench_viewer.py [--episodes 100000] [--tokens 200000] [--repeat 5]

Needs Chromium, and Playwright from the dev extra.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from ratios import kept

from ajet.record.episodes import EpisodeFiles
from ajet_viewer.app import PAGE
from tests.support.viewer_fixtures import long_episode, played, write_run

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
PAINT_LIMIT, FRAME_LIMIT_MS, COST_LIMIT = 3.0, 50.0, 0.01
A_STEP = 1000
SCROLL = """async (selector) => {
  const box = selector ? document.querySelector(selector) : document.scrollingElement;
  const gaps = []; let last = performance.now();
  const step = (box.scrollHeight - box.clientHeight) / 240;
  for (let frame = 0; frame < 240; frame++) {
    box.scrollTop += step;
    await new Promise(requestAnimationFrame);
    const now = performance.now(); gaps.push(now - last); last = now;
  }
  gaps.sort((a, b) => a - b);
  return [gaps[120], gaps[237], gaps[239]];
}"""


def record(folder: Path, episodes: int, tokens: int) -> None:
    """A run with so many episodes, and one of so many tokens."""
    write_run(folder, steps=1)
    files = EpisodeFiles(folder / "episodes")
    for step in range(2, 2 + episodes // A_STEP):
        files.write(step, "train", (played(step, task, 0, "four") for task in range(A_STEP)))
    files.write(1, "validation", [long_episode(tokens)])


def serve(command: list[str], cwd: Path) -> tuple[subprocess.Popen[str], str]:
    """A server and its address, which is on the line that it prints first."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd)
    assert process.stdout is not None
    found = re.search(r"http://[\w.:]+/", process.stdout.readline())
    assert found is not None
    return process, found[0]


def first_paint(browser: Any, address: str) -> float:
    """Milliseconds from the request to the first contentful paint, in a browser that has cached nothing."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    found: float = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    return found


def scroll(browser: Any, address: str, selector: str, ready: str) -> list[float]:
    """Milliseconds between frames: median, 99th percentile, most."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address)
    page.locator(ready).first.wait_for(timeout=60_000)
    page.wait_for_timeout(500)
    found: list[float] = page.evaluate(SCROLL, selector)
    page.close()
    return found


def main() -> None:
    """Print the ratios; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("bench_viewer needs Chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        root, static = Path(place) / "runs", Path(place) / "static"
        record(root / "big", arguments.episodes, arguments.tokens)
        shutil.copytree(PAGE, static / "page")
        shutil.copy(PAGE / "index.html", static / "index.html")
        words = " ".join(f"token{number}" for number in range(arguments.tokens))
        (static / "text.html").write_text(f"<!doctype html><pre id=text style='white-space:pre-wrap'>{words}</pre>")
        launcher = [sys.executable, "-m", "ajet.cli.launcher", "view", "--exp-dir", str(root), "--no-browser"]
        viewer, address = serve(launcher, static)
        plain, other = serve([sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"], static)
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            failed = look(browser, address, other, psutil.Process(viewer.pid), arguments.repeat)
        finally:
            browser.close()
            viewer.terminate()
            plain.terminate()
    sys.exit(failed)


def look(browser: Any, viewer: str, static: str, process: psutil.Process, repeat: int) -> bool:
    """Measure all three; True when a limit is missed."""
    ours, theirs = [], []
    for _ in range(repeat):
        theirs.append(first_paint(browser, static))
        ours.append(first_paint(browser, f"{viewer}#/run/big/episodes"))
    paint = statistics.median(ours) / statistics.median(theirs)
    print(
        f"first paint: viewer {statistics.median(ours):.0f} ms, static page {statistics.median(theirs):.0f} ms: "
        f"ratio {paint:.2f} (at most {PAINT_LIMIT})"
    )
    page = browser.new_page()
    began = time.monotonic()
    page.goto(f"{viewer}#/run/big/episodes")
    page.locator("tbody tr").first.wait_for()
    rows = time.monotonic() - began
    page.wait_for_function("!document.body.innerText.includes('to go')", timeout=300_000)
    print(f"table: first rows after {rows:.2f} s, all episodes read after {time.monotonic() - began:.1f} s")
    page.goto(f"{viewer}#/run/big")
    page.wait_for_timeout(1000)
    before, start = sum(process.cpu_times()[:2]), time.monotonic()
    page.wait_for_timeout(10_000)
    cost = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - start)
    page.close()
    print(f"cost: {100 * cost:.2f} % of a core while a page is open (at most {100 * COST_LIMIT} %)")
    text = scroll(browser, f"{static}text.html", "", "#text")
    tokens = scroll(browser, f"{viewer}#/run/big/episode/long", ".tokens", ".t")
    for name, found in (("static text", text), ("token view", tokens)):
        print(f"scrolling {name}: {found[0]:.0f} ms a frame, 99th percentile {found[1]:.0f}, longest {found[2]:.0f}")
    print(f"longest frame of the token view: {tokens[2]:.0f} ms (at most {FRAME_LIMIT_MS:.0f})")
    limits = [
        kept("first paint against a static page", paint, at_most=PAINT_LIMIT),
        kept("share of a core while open", cost, at_most=COST_LIMIT),
        kept("ms of the longest frame", tokens[2], at_most=FRAME_LIMIT_MS),
    ]
    return not all(limits)


if __name__ == "__main__":
    main()
