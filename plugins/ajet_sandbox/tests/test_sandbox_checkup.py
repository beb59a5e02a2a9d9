"""What `ajet doctor` says of sandboxes."""

from __future__ import annotations

from ajet_sandbox.checkup import probe_walls


def test_open_walls_are_reported() -> None:
    """Without a sandbox each probe gets through: a probe that cannot would report walls that are not there."""
    [finding] = probe_walls("none", None)
    assert finding.state == "warning"
    assert all(wall in finding.text for wall in ("file", "network", "process"))
