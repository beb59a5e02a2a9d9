"""A real Firefox, driven by WebDriver BiDi over its own socket: Playwright drives only a Firefox of its own making.

Invariant: a profile of its own, a port from the kernel; whoever opened it has it gone with the block, however it ends.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

PROGRAM = shutil.which("firefox") or shutil.which("firefox-esr")
SECONDS = 60.0
PREFERENCES = {
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,none",
    "toolkit.telemetry.enabled": False,
}


class Tab:
    """One tab; `wrong`: the errors that its scripts and its policy had so far."""

    def __init__(self, socket: Connection) -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self.wrong: list[str] = []
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        self._context = self._ask("browsingContext.getTree")["contexts"][0]["context"]

    def goto(self, address: str) -> None:
        self._ask("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def size(self, width: int, height: int) -> None:
        self._ask("browsingContext.setViewport", context=self._context, viewport={"width": width, "height": height})

    def evaluate(self, expression: str) -> Any:
        """Its value as JSON, awaited. Raises AssertionError where it throws."""
        found = self._ask(
            "script.evaluate",
            expression=f"(async () => JSON.stringify((await ({expression})) ?? null))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    def until(self, expression: str) -> Any:
        """The first value that is true; looked at whenever the page changes."""
        return self.evaluate(
            "new Promise((tell, fail) => { const look = () => { try { const found = "
            f"({expression}); if (found) {{ watch.disconnect(); tell(found); }} }} catch (error) {{ fail(error); }} }};"
            "const watch = new MutationObserver(look);"
            "watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });"
            f"look(); setTimeout(() => fail(new Error(document.body.innerText)), {SECONDS * 1000:.0f}); }})"
        )

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        asked = next(self._ids)
        self._socket.send(json.dumps({"id": asked, "method": method, "params": params}))
        while True:
            found = json.loads(self._socket.recv(timeout=2 * SECONDS))
            if found.get("method") == "log.entryAdded" and found["params"]["level"] == "error":
                self.wrong.append(str(found["params"]["text"]))
            if found.get("id") == asked:
                assert found["type"] == "success", found
                return dict(found["result"])


@contextmanager
def firefox(folder: Path) -> Iterator[Tab]:
    """A tab of a Firefox whose profile is made in `folder`."""
    assert PROGRAM is not None
    profile = folder / "profile"
    profile.mkdir()
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines))
    command = [PROGRAM, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    process = subprocess.Popen(
        [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "MOZ_HEADLESS": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr)
        address = next(found[1] for found in said if found)
        with connect(f"{address}/session", open_timeout=SECONDS, max_size=None, proxy=None) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.communicate()
