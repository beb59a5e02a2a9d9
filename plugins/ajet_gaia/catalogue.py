"""The servers, by the names that AWorld's GAIA environment gave them, and a few more.

Invariant: every name is here once, as a name or as an alias; SEED_NAMES are the nineteen that its users' agents print.
"""

from __future__ import annotations

from ajet_gaia.server import Server

FOLDER = "the working folder"


def _model(service: str) -> tuple[str, ...]:
    return tuple(f"{service}_LLM_{part}" for part in ("BASE_URL", "API_KEY", "MODEL_NAME"))


SERVERS = (
    Server("readweb-server", "text of a web page", "readweb", network=True, sandboxed=False, per_episode=False),
    Server(
        "browser-server",
        "a browser that a second model drives to a goal",
        "browser_use",
        aliases=("browseruse-server",),
        variables=_model("BROWSER"),
        passed=("CHROMIUM",),
        pins="browser",
        executables=("chromium",),
        network=True,
    ),
    Server("documents-csv-server", "CSV files", "documents_csv"),
    Server("documents-docx-server", "Word files", "documents_docx", pins="docx"),
    Server("documents-pptx-server", "PowerPoint files", "documents_pptx", pins="pptx"),
    Server("documents-pdf-server", "PDF files", "documents_pdf", pins="pdf"),
    Server("documents-txt-server", "text files", "documents_txt"),
    Server("download-server", "downloads into the working folder", "download", network=True, state=FOLDER),
    Server("intelligence-code-server", "a second model writes code", "intelligence_code", variables=_model("CODE")),
    Server(
        "intelligence-think-server",
        "a second model thinks",
        "intelligence_think",
        variables=_model("THINK"),
        sandboxed=False,
        per_episode=False,
    ),
    Server(
        "intelligence-guard-server",
        "a second model looks for faults in reasoning",
        "intelligence_guard",
        variables=_model("GUARD"),
        sandboxed=False,
        per_episode=False,
    ),
    Server("media-audio-server", "recordings", "media_audio", pins="media", some_tools=_model("AUDIO"), state=FOLDER),
    Server("media-image-server", "pictures", "media_image", pins="picture", some_tools=_model("IMAGE")),
    Server("media-video-server", "videos", "media_video", pins="media", some_tools=_model("VIDEO"), state=FOLDER),
    Server(
        "parxiv-server",
        "papers of arXiv",
        "arxiv",
        passed=("ARXIV_API_URL", "ARXIV_URL"),
        pins="pdf",
        network=True,
        state=FOLDER,
    ),
    Server("terminal-server", "shell commands", "terminal", state=FOLDER),
    Server(
        "wayback-server",
        "archived web pages",
        "wayback",
        passed=("WAYBACK_URL",),
        network=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server(
        "wiki-server",
        "Wikipedia, or a corpus in its place",
        "wikipedia",
        passed=("WIKIPEDIA_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server(
        "googlesearch-server",
        "web search, or a corpus in its place",
        "google",
        variables=("GOOGLE_API_KEY", "GOOGLE_CSE_ID"),
        passed=("GOOGLE_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server("filesystem-server", "files of the working folder", "filesystem", state=FOLDER),
    Server(
        "terminal-controller", "shell commands and lines of files", "terminal_controller", state="folder, directory"
    ),
    Server("excel", "Excel files", "excel", aliases=("excel-server",), pins="excel", state=FOLDER),
    Server(
        "google-search",
        "web search and pages, or a corpus in their place",
        "google_pages",
        variables=("GOOGLE_API_KEY", "GOOGLE_SEARCH_ENGINE_ID"),
        passed=("GOOGLE_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server("audio-server", "transcripts of recordings", "audio_urls", variables=_model("AUDIO")),
    Server("image-server", "questions about pictures", "image_urls", variables=_model("IMAGE")),
    Server("e2b-code-server", "Python", "python_code", aliases=("python-server",), state="interpreters"),
    Server(
        "ms-playwright",
        "a browser, step by step",
        command=(
            *("node", "{packages}/node_modules/@playwright/mcp/cli.js", "--headless", "--isolated", "--no-sandbox"),
            *("--executable-path", "{chromium}", "--output-dir", "{workdir}"),
        ),
        aliases=("playwright-server",),
        tool_names=tuple(
            f"browser_{action}"
            for action in (
                *("click", "close", "console_messages", "drag", "drop", "emulate_media", "evaluate", "file_upload"),
                *("fill_form", "find", "handle_dialog", "hover", "navigate", "navigate_back", "network_request"),
                *("network_requests", "press_key", "resize", "run_code_unsafe", "select_option", "snapshot", "tabs"),
                *("take_screenshot", "type", "wait_for"),
            )
        ),
        pins="",
        npm="@playwright/mcp@0.0.83",
        executables=("node", "chromium"),
        network=True,
        state="a browser",
    ),
    Server(
        "search-server",
        "search in a corpus on this machine",
        "corpus_search",
        aliases=("search",),
        corpus=True,
        only_corpus=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server(
        "calculator-server", "arithmetic", "calculator", aliases=("calculator",), sandboxed=False, per_episode=False
    ),
    Server("time-server", "times and zones", "clock", aliases=("time",), sandboxed=False, per_episode=False),
    Server(
        "fetch-server",
        "text of a web page, in pieces",
        "fetch",
        aliases=("fetch",),
        network=True,
        sandboxed=False,
        per_episode=False,
    ),
    Server("sqlite-server", "one database", "sqlite", aliases=("sqlite",), passed=("SQLITE_DATABASE",), state=FOLDER),
    Server("git-server", "Git repositories", "git", aliases=("git",), executables=("git",), state=FOLDER),
    Server("memory-server", "notes as a graph", "memory", aliases=("memory",), state=FOLDER),
)

SEED_NAMES = (
    *("readweb-server", "browseruse-server", "documents-csv-server", "documents-docx-server", "documents-pptx-server"),
    *("documents-pdf-server", "documents-txt-server", "download-server", "intelligence-code-server"),
    *("intelligence-think-server", "intelligence-guard-server", "media-audio-server", "media-image-server"),
    *("media-video-server", "parxiv-server", "terminal-server", "wayback-server", "wiki-server"),
    "googlesearch-server",
)
