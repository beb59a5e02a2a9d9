"""A page whose address holds a secret, opened in the person's browser.

Invariant: the address is in no command line, which every user of the machine can read: the browser is given a file that
only this user may read, and that leads there. It is removed with `close`, or after a kill by the next one.
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
    """The browser is asked for it at once. Raises OSError where there is no place for the file."""

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
        """Remove the file. Idempotent."""
        self._folder.remove()


def open_page(address: str) -> OpenedPage | None:
    """None where nobody sits before a desktop, or the file cannot be: the address is printed, too."""
    if not _has_desktop():
        return None
    try:
        return OpenedPage(address)
    except OSError:
        return None


def _has_desktop() -> bool:
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
