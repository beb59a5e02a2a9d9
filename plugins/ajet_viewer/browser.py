"""Open a page with a secret address in the person's browser.

Invariant: the address is in no command line, which other users can read. The browser opens a private file that
redirects to the address; `close` removes the file, and after a kill the next page does.
"""

from __future__ import annotations

import html
import os
import sys
import webbrowser

from ajet.record.held_folder import HeldFolder

LEADS = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>ajet</title>
<p><a href="{address}">The viewer</a></p>
"""


class OpenedPage:
    """A page opened at once. Raises OSError if the file cannot be written."""

    def __init__(self, address: str) -> None:
        self._folder = HeldFolder("ajet-page-")
        file = self._folder.path / "viewer.html"
        try:
            file.touch(0o600)
            file.write_text(LEADS.format(address=html.escape(address)), encoding="utf-8")
            webbrowser.open(file.as_uri())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the private file. Idempotent."""
        self._folder.remove()


def open_page(address: str) -> OpenedPage | None:
    """Open the page; None without a desktop or a writable folder. The address is printed too."""
    if not has_desktop():
        return None
    try:
        return OpenedPage(address)
    except OSError:
        return None


def has_desktop() -> bool:
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
