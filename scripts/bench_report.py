"""`make bench-report`: write the table of docs/performance.md from the rows in benchmarks/results/measured.jsonl.

A row with `shown` has a line in the table. The other rows and the notes of the same file say on which machine, on which
day and under which load each number was measured.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks/results/measured.jsonl"
PAGE = ROOT / "docs/performance.md"
TABLE = re.compile(r"(?<=<!-- table: make bench-report -->\n).*?(?=<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is out of date, write nothing")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    wanted = TABLE.sub(lambda _: f"\n{render_table(read_rows())}\n", page)
    if options.check:
        return int(wanted != page)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


def read_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| What | Against | Goal | Measured | Met | Script |", "|---|---|---|---|---|---|"]
    for row in rows:
        if shown := row.get("shown"):
            script = f"[`{shown['script']}`](../benchmarks/bench_{shown['script']}.py)"
            met = {True: "yes", False: "**no**", None: ""}[row["met"]]
            cells = (shown["what"], shown["against"], shown["goal"], shown["measured"], met, script)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
