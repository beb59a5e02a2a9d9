"""Writes demonstrations.jsonl: the app's own messages with the table's answers, without held-out rows."""

import csv
import json
from pathlib import Path

from support_agent import build_messages

FOLDER = Path(__file__).parent
TRAINED = 0.8  # as training_split in app.yaml

with open(FOLDER / "examples.csv", encoding="utf-8-sig", newline="") as table:
    rows = list(csv.DictReader(table))
with open(FOLDER / "demonstrations.jsonl", "w", encoding="utf-8") as file:
    for row in rows[: round(TRAINED * len(rows))]:
        answer = {"role": "assistant", "content": row["Team"]}
        file.write(json.dumps({"messages": [*build_messages(row["Question"]), answer]}) + "\n")
