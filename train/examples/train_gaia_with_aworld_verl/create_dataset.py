"""Write the tasks of the GAIA example in verl's format: datasets/train.parquet and datasets/test.parquet.

    python -m train.examples.train_gaia_with_aworld_verl.create_dataset [--dataset_path GAIA] [--output_dir datasets]

Invariants: GAIA is a folder with metadata.jsonl, directly or in `validation`. Without GAIA, a few similar questions
without files or network are used. Each task is in exactly one of the two files, the same file every time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

QUESTIONS = (
    ("What is 37 * 43 + 12?", "1603"),
    ("What is the sum of all prime numbers below 50?", "328"),
    ("How many days lie between 3 March 2024 and 17 November 2024?", "259"),
    ("On which day of the week was 20 July 1969?", "Sunday"),
    ("What is the greatest common divisor of 1071 and 462?", "21"),
    ("How many times does the letter s occur in 'Mississippi possesses sisters'?", "12"),
    ("Sort by length, shortest first, with commas between: kiwi jam, fig, banana", "fig, banana, kiwi jam"),
    ("What is 2 to the power of 31, minus 1?", "2147483647"),
    ("What is the 20th Fibonacci number, where the first two are 1?", "6765"),
    ("Write 3999 as a Roman numeral.", "MMMCMXCIX"),
    ("What is the hexadecimal number ff3c in decimal?", "65340"),
    ("What is 15% of 8,640?", "1296"),
)  # fmt: skip
TEST_SHARE = 4
"""The fraction 1 / TEST_SHARE of the tasks is held out."""


def tasks_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield GAIA's own tasks. Raises FileNotFoundError."""
    places = (folder / "metadata.jsonl", folder / "validation" / "metadata.jsonl")
    file = next((path for path in places if path.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"neither {folder}/metadata.jsonl nor {folder}/validation/metadata.jsonl is there")
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            attached = f"\n\nThe file of this task is {file.parent / row['file_name']}." if row.get("file_name") else ""
            answer = str(row["Final answer"])
            yield {
                "id": row["task_id"],
                "question": row["Question"] + attached,
                "answer": answer,
                "level": row["Level"],
            }


def built_in() -> Iterator[dict[str, Any]]:
    """Yield the built-in questions as tasks."""
    for number, (question, answer) in enumerate(QUESTIONS):
        yield {"id": f"built-in-{number}", "question": question, "answer": answer, "level": 1}


def row_of(task: dict[str, Any], split: str, system: str) -> dict[str, Any]:
    """Return the row of a task in verl's format."""
    prompt = [{"role": "system", "content": system}] if system else []
    about = {"task_id": task["id"], "split": split, "level": str(task["level"]), "answer": task["answer"]}
    return {
        "prompt": [*prompt, {"role": "user", "content": task["question"]}],
        "data_source": "gaia",
        "ability": "agi",
        "reward_model": {"style": "rule", "ground_truth": task["answer"]},
        "extra_info": about,
        "agent_name": "gaia_agent",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the training and the test file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset_path", type=Path)
    parser.add_argument("--output_dir", type=Path, default=Path("datasets"))
    parser.add_argument("--system", default="", help="a system message before each question")
    options = parser.parse_args(arguments)
    from datasets import Dataset

    found = list(tasks_of(options.dataset_path) if options.dataset_path else built_in())
    found.sort(key=lambda task: hashlib.sha256(task["id"].encode()).hexdigest())
    held = max(1, len(found) // TEST_SHARE)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for split, tasks in (("test", found[:held]), ("train", found[held:])):
        file = options.output_dir / f"{split}.parquet"
        Dataset.from_list([row_of(task, split, options.system) for task in tasks]).to_parquet(str(file))
        print(f"{file}: {len(tasks)} tasks")


if __name__ == "__main__":
    main()
