"""The agent, a separate program. Any program that reads OPENAI_BASE_URL and OPENAI_API_KEY works, in any language.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py "What is 3 + 4?"
"""

import json
import os
import sys
import urllib.request

# One worked example: without it this small model never writes a box, and a constant reward of 0 teaches nothing.
EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]


def chat(messages):
    """Send one request to the model and return the message of the reply."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ.get("OPENAI_MODEL", "gpt-4o"), "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


if __name__ == "__main__":
    answer = chat([*EXAMPLE, {"role": "user", "content": sys.argv[1]}])
    print(" ".join((answer.get("content") or "").split()))
