"""What a container is given of variables: by a file where an engine's can hold it, else by the command's own."""

from __future__ import annotations

import os

from ajet_sandbox.engine import pass_variables


def test_values_stand_in_the_file_as_they_are_and_those_that_it_cannot_hold_beside_it() -> None:
    held = {"EMPTY": "", "QUOTED": "'it' = \"x\" #1 ", "LONG": "x" * 29_000, "SIGNS": "字" * 9_000}
    beside = {"LINES": "one\ntwo", "RETURN": "one\r", "WIDE": "字" * 22_000}
    found = pass_variables({**held, **beside})
    try:
        with open(found.descriptor, encoding="utf-8", closefd=False) as file:
            lines = file.read().splitlines()
        assert not os.get_inheritable(found.descriptor), "by nobody but whom it is passed to"
    finally:
        os.close(found.descriptor)
    assert dict(line.split("=", 1) for line in lines) == held
    assert max(len(line.encode()) for line in lines) < 1 << 16
    assert found.environment == beside
    assert found.words == ("--env-file", f"/dev/fd/{found.descriptor}", *(w for n in beside for w in ("--env", n)))
