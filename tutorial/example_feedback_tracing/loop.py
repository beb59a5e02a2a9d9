"""The whole way, in the working directory: deploy, observe, feedback, traces, learn, deploy again.

Each command is shown before it runs. Servers are ended by Ctrl-C's signal once they are not needed any more.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
AJET = [sys.executable, "-m", "ajet.cli.launcher"]


def ajet(*words: str) -> None:
    """One command, to its end."""
    print("$", shlex.join(["ajet", *words]), flush=True)
    subprocess.run([*AJET, *words], check=True)


def desk(*words: str) -> None:
    """The agent and its users."""
    print("$ python desk.py", *words, flush=True)
    subprocess.run([sys.executable, str(HERE / "desk.py"), *words], check=True)


@contextmanager
def server(*words: str) -> Iterator[str]:
    """One that serves within the block. Answers its address, which ends in /v1."""
    print("$", shlex.join(["ajet", *words]), "&", flush=True)
    process = subprocess.Popen([*AJET, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"(?:answers|Observing) on (http://\S+/v1)", line):
                yield found[1]
                break
        else:
            sys.exit("".join(lines))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.wait()


def main() -> None:
    os.environ.setdefault("AJET_API_KEY", secrets.token_hex(16))
    os.environ |= {"COLUMNS": "300", "NO_COLOR": "1"}
    for name in ("first.yaml", "traces.yaml", "taught.yaml"):
        Path(name).write_text((HERE / name).read_text())
    desk("first", "first.jsonl")
    ajet("sft", "--conf", "first.yaml")
    with server("deploy", "desk") as model, server("observe", "--endpoint", model) as proxy:
        desk(proxy, "--feedback")
    ajet("traces", "--conf", "traces.yaml", "--out", "taught")
    ajet("sft", "--conf", "taught.yaml")
    with server("deploy", "desk-taught") as model:
        desk(model)


if __name__ == "__main__":
    main()
