"""The catalogue of servers, with the names of AWorld's GAIA environment and a few more.

Invariants: every name occurs once, as a name or as an alias. SEED_NAMES are the nineteen names printed by AWorld's
agents.
"""

from __future__ import annotations

from ajet_gaia.server import GaiaServer


def _model_variables(service: str) -> tuple[str, ...]:
    """Return the environment variables of a server's second model, such as BROWSER_LLM_API_KEY."""
    return tuple(f"{service}_LLM_{suffix}" for suffix in ("BASE_URL", "API_KEY", "MODEL_NAME"))


SERVERS = (
    GaiaServer("readweb-server", "readweb", network=True, sandboxed=False),
    GaiaServer(
        "browser-server",
        "browser_use",
        aliases=("browseruse-server",),
        variables=_model_variables("BROWSER"),
        passed=("CHROMIUM",),
        pins="browser",
        executables=("chromium",),
        network=True,
    ),
    GaiaServer("documents-csv-server", "documents_csv"),
    GaiaServer("documents-docx-server", "documents_docx", pins="docx"),
    GaiaServer("documents-pptx-server", "documents_pptx", pins="pptx"),
    GaiaServer("documents-pdf-server", "documents_pdf", pins="pdf"),
    GaiaServer("documents-txt-server", "documents_txt"),
    GaiaServer("download-server", "download", network=True),
    GaiaServer("intelligence-code-server", "intelligence_code", variables=_model_variables("CODE")),
    GaiaServer(
        "intelligence-think-server",
        "intelligence_think",
        variables=_model_variables("THINK"),
        sandboxed=False,
    ),
    GaiaServer(
        "intelligence-guard-server",
        "intelligence_guard",
        variables=_model_variables("GUARD"),
        sandboxed=False,
    ),
    GaiaServer("media-audio-server", "media_audio", pins="media", some_tools=_model_variables("AUDIO")),
    GaiaServer("media-image-server", "media_image", pins="picture", some_tools=_model_variables("IMAGE")),
    GaiaServer("media-video-server", "media_video", pins="media", some_tools=_model_variables("VIDEO")),
    GaiaServer(
        "parxiv-server",
        "arxiv",
        passed=("ARXIV_API_URL", "ARXIV_URL"),
        pins="pdf",
        network=True,
    ),
    GaiaServer("terminal-server", "terminal"),
    GaiaServer(
        "wayback-server",
        "wayback",
        passed=("WAYBACK_URL",),
        network=True,
        sandboxed=False,
    ),
    GaiaServer(
        "wiki-server",
        "wikipedia",
        passed=("WIKIPEDIA_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
    ),
    GaiaServer(
        "googlesearch-server",
        "google",
        variables=("GOOGLE_API_KEY", "GOOGLE_CSE_ID"),
        passed=("GOOGLE_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
    ),
    GaiaServer("filesystem-server", "filesystem"),
    GaiaServer("terminal-controller", "terminal_controller"),
    GaiaServer("excel", "excel", aliases=("excel-server",), pins="excel"),
    GaiaServer(
        "google-search",
        "google_pages",
        variables=("GOOGLE_API_KEY", "GOOGLE_SEARCH_ENGINE_ID"),
        passed=("GOOGLE_API_URL",),
        network=True,
        corpus=True,
        sandboxed=False,
    ),
    GaiaServer("audio-server", "audio_urls", variables=_model_variables("AUDIO")),
    GaiaServer("image-server", "image_urls", variables=_model_variables("IMAGE")),
    GaiaServer("e2b-code-server", "python_code", aliases=("python-server",)),
    GaiaServer(
        "ms-playwright",
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
    ),
    GaiaServer(
        "search-server",
        "corpus_search",
        aliases=("search",),
        corpus=True,
        only_corpus=True,
        sandboxed=False,
    ),
    GaiaServer("calculator-server", "calculator", aliases=("calculator",), sandboxed=False),
    GaiaServer("time-server", "clock", aliases=("time",), sandboxed=False),
    GaiaServer(
        "fetch-server",
        "fetch",
        aliases=("fetch",),
        network=True,
        sandboxed=False,
    ),
    GaiaServer("sqlite-server", "sqlite", aliases=("sqlite",), passed=("SQLITE_DATABASE",)),
    GaiaServer("git-server", "git", aliases=("git",), executables=("git",)),
    GaiaServer("memory-server", "memory", aliases=("memory",)),
)

SEED_NAMES = (
    *("readweb-server", "browseruse-server", "documents-csv-server", "documents-docx-server", "documents-pptx-server"),
    *("documents-pdf-server", "documents-txt-server", "download-server", "intelligence-code-server"),
    *("intelligence-think-server", "intelligence-guard-server", "media-audio-server", "media-image-server"),
    *("media-video-server", "parxiv-server", "terminal-server", "wayback-server", "wiki-server"),
    "googlesearch-server",
)
