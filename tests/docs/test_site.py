"""The docs site: five parts, every page, no dead link, and a search that finds words in Chromium."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts.docs_site import CONFIG, LIST, STYLE, SiteError, build_site, list_pages, read_nav
from tests.docs.snippets import PAGES, REFERENCE, ROOT

PARTS = ["Get started", "Guides", "Concepts", "Reference", "Contributing"]
LISTED = "# Pages\n\n## Guides\n\n- [One](one.md)\n"


def test_the_list_has_five_parts_and_each_page_once():
    nav = read_nav(ROOT)
    assert [title for part in nav for title in part] == PARTS
    pages = [*list_pages(nav)]
    assert sorted({page for page in pages if pages.count(page) > 1}) == []
    written = {page.relative_to(ROOT).as_posix() for page in [*PAGES, *REFERENCE]}
    assert written - {"README.md", LIST} <= set(pages)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one page."""
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    for name in (CONFIG, STYLE):
        shutil.copyfile(ROOT / name, root / name)
    (root / LIST).write_text(LISTED)
    (root / "README.md").write_text("# Home\n\n[pages](docs/README.md)\n")
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gone](gone.md)", "docs/one.md links to gone.md"),
        ("[a file](../gone.py)", "docs/one.md links to ../gone.py"),
        ("[a part](README.md#guide)", "anchor"),
        ("Items:\n- first\n- second", "2 of <li> by CommonMark, 0 on the site"),
    ],
)
def test_a_page_with_a_fault_fails_the_build(project: Path, text: str, problem: str) -> None:
    pytest.importorskip("zensical")
    (project / "docs" / "one.md").write_text(f"# One\n\n{text}\n")
    with pytest.raises(SiteError) as caught:
        build_site(project, project / "build")
    assert problem in str(caught.value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own site."""
    pytest.importorskip("zensical")
    return build_site(ROOT, tmp_path_factory.mktemp("build"))


class SilentHandler(SimpleHTTPRequestHandler):
    """Serves files and prints no requests."""

    def log_message(self, format: str, *values: object) -> None: ...


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SilentHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_the_search_finds_words_without_a_network(address: str) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        for word, found in (("staleness", "off_policy"), ("judge", "judge_models"), ("奖励", "aworld_zh")):
            page.goto(f"{address}docs/")
            page.locator("label[for=__search]").first.click()
            page.locator("input[aria-label=Search]").fill(word)
            expect(page.locator(f"a:has(mark)[href*='/{found}/']").first).to_be_visible(timeout=20_000)
        page.goto(f"{address}docs/reference/configuration/")  # wide tables scroll in themselves
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        browser.close()
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
