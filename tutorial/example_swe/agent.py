"""A coding agent in one file without packages. It runs in the task's container, in the repository's folder.

The model sees the program with numbered lines, and replies `run tests` or `line 2: return x + 1`, up to four times. The
first edit ends the episode; the patch is what `git diff` prints.
"""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

TURNS = 4
SYSTEM = {"role": "system", "content": "A test fails. Reply: run tests, or line N: text."}
EDIT = re.compile(r"line (\d+): (.+)")


def show_file(text: str) -> str:
    """Return a program with numbered lines, without the empty ones."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(text.splitlines(), 1) if line)


def ask(messages: list[dict[str, str]]) -> str:
    """Return the model's reply. The variables are ajet's; any OpenAI-compatible server would do."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"] or ""


def run_tests(test: Path) -> str:
    """Return the line of the first assertion that fails, and its text."""
    done = subprocess.run(["python3", "-B", str(test)], capture_output=True, text=True, timeout=20)
    lines = re.findall(r"line \d+", done.stderr)
    return f"{lines[-1]}: {done.stderr.strip().rpartition(': ')[2]}" if lines else "all tests pass"


def apply_edit(reply: str, program: Path) -> bool:
    """Replace a line and keep its indentation. Return False for a reply that is no edit of a line with text."""
    edit, lines = EDIT.fullmatch(reply.strip()), program.read_text().splitlines()
    at = int(edit[1]) - 1 if edit else -1
    if edit is None or not 0 <= at < len(lines) or not lines[at]:
        return False
    indentation = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at] = indentation + edit[2]
    program.write_text("\n".join([*lines, ""]))
    return True


def main() -> None:
    [test] = Path().glob("test_*.py")
    program = Path(test.name.removeprefix("test_"))
    messages = [SYSTEM, {"role": "user", "content": show_file(program.read_text())}]
    for _ in range(TURNS):
        reply = ask(messages)
        if apply_edit(reply, program):
            break
        result = run_tests(test) if reply.strip() == "run tests" else "no such line"
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": result}]
    print(subprocess.run(["git", "diff"], capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
