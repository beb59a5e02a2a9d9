"""A command-line agent. It knows nothing of ajet: any program that reads OPENAI_BASE_URL and OPENAI_API_KEY will do.

python agent.py --prices prices.json "What does the eel cost?"
"""

import argparse
import json
import os
import urllib.request
from pathlib import Path

TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


def chat(messages):
    """One model call."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ.get("OPENAI_MODEL", "gpt-4o"), "messages": messages, "tools": [TOOL]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def look_up(prices, arguments):
    """The tool. A mistake of the model is an answer it can read."""
    try:
        item = json.loads(arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
    return str(prices.get(item, f"there is no {item}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prices", required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("question")
    given = parser.parse_args()
    prices = json.loads(Path(given.prices).read_text())
    system = Path("system.txt").read_text().strip()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": given.question}]
    for _ in range(given.turns):
        message = chat(messages)
        messages.append(message)
        for call in message.get("tool_calls") or []:
            result = look_up(prices, call["function"]["arguments"])
            print(f"looked up: {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not message.get("tool_calls"):
            break
    print(" ".join((message.get("content") or "").split()))


if __name__ == "__main__":
    main()
