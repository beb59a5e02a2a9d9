"""The viewer in Firefox: every page works and fits, nothing is said on its console, its policy holds."""

import json
import time

import pytest

from ajet_viewer.app import Views
from ajet_viewer.export import write_frozen_page
from ajet_viewer.library import Library
from tests.support.ajet_process import start
from tests.support.firefox import PROGRAM, firefox
from tests.support.viewer_fixtures import HOSTILE, write_run

pytestmark = [
    pytest.mark.extra_slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Firefox on this machine: apt install firefox-esr"),
]

ROWS = "document.querySelectorAll('tbody tr').length"
FITS = "document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture
def tab(tmp_path):
    with firefox(tmp_path) as opened:
        yield opened
        assert not opened.wrong, opened.wrong


@pytest.fixture
def address(tmp_path):
    root = tmp_path / "runs"
    write_run(root / "first", said=HOSTILE)
    write_run(root / "second", steps=2)
    log = tmp_path / "view.log"
    process = start("view", "--exp-dir", str(root), "--no-browser", cwd=tmp_path, log=log)
    try:
        while not log.read_text().endswith("\n"):
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)  # polls the output; nothing is assumed of how long it takes
        yield next(word for word in log.read_text().split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_works_and_fits(address, tab, tmp_path, width):
    tab.size(width, 800)
    tab.goto(address)
    assert tab.until(f"{ROWS} === 2 && {FITS}")
    tab.goto(f"{address}#/run/first")
    assert tab.until(f"document.querySelectorAll('figure.chart canvas').length >= 3 && {FITS}")
    tab.goto(f"{address}#/run/first/episodes")
    assert tab.until(f"{ROWS} === 15 && {FITS}")
    tab.goto(f"{address}#/run/first/rewards")
    assert tab.until(f"document.querySelectorAll('.spread a').length === 12 && {FITS}")
    tab.goto(f"{address}#/run/first/episode/e00311")
    assert tab.until(f"document.querySelectorAll('.t.trained').length === 11 && {FITS}")
    assert "<script>window.pwned = 1</script>" in tab.evaluate("document.querySelector('.turn.assistant').innerText")
    assert tab.evaluate("window.pwned === undefined")


def test_a_chart_is_enlarged_and_a_note_kept(address, tab, tmp_path):
    tab.goto(f"{address}#/run/first")
    tab.until(
        "document.querySelector('[aria-label^=enlarge]')?.click() ?? document.querySelector('dialog[open] canvas')"
    )
    assert tab.evaluate("document.querySelector('dialog').getBoundingClientRect().width === innerWidth")
    tab.evaluate("document.querySelector('dialog [aria-label=close]').click()")
    tab.evaluate("document.querySelector('.notes button').click()")
    tab.evaluate("document.querySelector('[aria-label=tags]').value = 'paper'")
    tab.evaluate("document.querySelector('.notes form button').click()")
    assert tab.until("document.querySelector('.notes .badge')?.textContent === 'paper'")
    assert json.loads((tmp_path / "runs" / "first" / "notes.json").read_text())["tags"] == ["paper"]


def test_a_file_opens_from_disk(tab, tmp_path):
    write_run(tmp_path / "alone", said=HOSTILE)
    write_frozen_page(
        Views(Library.of(tmp_path / "alone"), lambda folder: None), "alone", None, tmp_path / "alone.html"
    )
    tab.goto(f"{(tmp_path / 'alone.html').as_uri()}#/run/alone/rewards")
    assert tab.until("document.querySelectorAll('.spread a').length === 12")
    tab.goto(f"{(tmp_path / 'alone.html').as_uri()}#/run/alone/episode/e00311")
    assert tab.until("document.querySelectorAll('.t.trained').length === 11")
    assert tab.evaluate("window.pwned === undefined")
