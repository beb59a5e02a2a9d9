"""Command-line agents as programs: what tests of CommandWorkflow run."""

from __future__ import annotations

import textwrap
from pathlib import Path

ASK = """
    import json, os, sys, urllib.request

    def ask(text, base=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"]):
        body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]
"""


def program(path: Path, *lines: str) -> Path:
    """A Python program that can `ask(text)` the model."""
    path.write_text(textwrap.dedent(ASK) + "\n" + "\n".join(textwrap.dedent(line) for line in lines) + "\n")
    return path
