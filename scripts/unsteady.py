"""Runs tests, and what failed of them once more, each file in a process of its own: .ci/run tells with it a test that
fails from one that is unsteady.

    python scripts/unsteady.py -- make test

Invariant: nothing is forgiven in silence. A test that failed and then passes twice in a row is named as unsteady, on
the last lines, for somebody to mend; more than `MOST` of them, one that fails or is skipped the next time, a file that
cannot be collected, a run that was broken off, a budget that is passed or what is left behind is a failure. Only the
stdlib is used. Exit code: the command's, or 0 where all that failed was unsteady.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 2
"""Unsteady tests in one run. More of them are no accident."""
AGAIN = 2
"""How often what failed has to pass."""
NO_TEST = re.compile(
    r"^([\w -]+: )?(left behind(?!.*, which failed$)|over budget|broken off)|INTERNALERROR|node down|"
    r"worker '\w+' crashed|^!{5,} |Failed: Timeout \(>"
)
"""What a run says of failures that are no test's; exclamation marks: it was broken off, the rest did not run. And of
a test that hangs: there is no time to see it hang again. What a failed test left belongs to its failure: where it is
left again, the next run fails."""
SKIPPED = re.compile(r"\b\d+ (skipped|deselected|xfailed)\b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="+")
    command = parser.parse_args().command
    FAILED.unlink(missing_ok=True)
    code, other = passed_on(command, NO_TEST)
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if code == 0 or not failed:
        return code
    if other:
        print("not tried again: " + other, flush=True)
        return code
    if whole := [name for name in failed if "::" not in name]:
        print(f"not tried again: {whole[0]} could not be collected", flush=True)
        return code
    if len(failed) > MOST:
        print(f"not tried again: {len(failed)} tests failed, more than {MOST}", flush=True)
        return code
    for _ in range(AGAIN):
        for path in sorted({test.split("::")[0] for test in failed}):
            tests = [test for test in failed if test.split("::")[0] == path]
            again, skipped = passed_on([sys.executable, "-m", "pytest", "-n0", *tests], SKIPPED)
            if again != 0 or skipped:
                print(f"failed again: {path}" + " (it was skipped)" * (again == 0), flush=True)
                return code
    for test in failed:
        print(f"unsteady: {test} failed, and passed {AGAIN} times when it ran alone", flush=True)
    return 0


def passed_on(command: list[str], sought: re.Pattern[str]) -> tuple[int, str]:
    """Its exit code, and the first line that has what is `sought`; its output goes where ours goes."""
    found = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for raw in process.stdout:
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()
            line = raw.decode(errors="replace")
            if not found and sought.search(line):
                found = line.strip()
    return process.returncode, found


if __name__ == "__main__":
    sys.exit(main())
