"""Files that a look at the working folder cannot see count against the limit, where nothing else holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.schema.sandbox import Limits
from ajet_sandbox.choose import open_sandbox
from tests.support.sandbox_fixtures import require

CLOSED = """
import os, time
os.mkdir("closed")
kept = [os.open(f"closed/{n}", os.O_CREAT | os.O_WRONLY) for n in range(3)]
os.chmod("closed", 0)
time.sleep(3)
"""
DEEP = """
import os, time
for _ in range(40):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
time.sleep(3)
"""


@pytest.mark.parametrize("code", [CLOSED, DEEP])
def test_folder_that_cannot_be_looked_at_ends_call(code: str) -> None:
    require("landlock")
    box = open_sandbox("landlock", Limits(wall=20, disk=1 << 20))
    folder = Path(box.folder)
    try:
        assert box.python(code).ended == "disk"
    finally:
        box.close()
    assert not folder.parent.exists()
