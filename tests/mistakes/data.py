"""Mistakes about rows and files, 1 to 14."""

from __future__ import annotations

import io
import zipfile

from tests.mistakes.mistake import Mistake
from tests.mistakes.project import ROWS, SCRIPT, YAML, json_lines, table

DRY = "ajet --conf m.yaml --dry-run"
FILE = "jsonl_dataset_file: {training: {file_path: train.jsonl}}"


def read_table(name: str, columns: str = "") -> str:
    """Return the YAML that reads a file through the data-set reader."""
    reader = f"huggingface_dat_repo: {{dataset_path: {name}}}{columns}"
    return YAML.replace("type: jsonl_dataset_file", "type: huggingface_dat_repo").replace(FILE, reader)


def read_lines(name: str) -> str:
    """Return the YAML that reads this file as JSON Lines."""
    return YAML.replace("file_path: train.jsonl", f"file_path: {name}")


def make_workbook() -> bytes:
    """Return a zip archive with a spreadsheet's parts."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as parts:
        parts.writestr("[Content_Types].xml", "<Types/>")
        parts.writestr("xl/workbook.xml", "<workbook/>")
    return archive.getvalue()


FROM_CSV = SCRIPT.replace(
    "TASKS = ", 'import csv\n\nTASKS = list(csv.DictReader(open("rows.csv", encoding="utf-8")))\nOTHER = '
)
CHAT = [{"messages": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in ROWS]
PROMPT = [{"prompt": row["messages"], "answer": row["answer"]} for row in CHAT]
TWICE = [{"id": "a", **ROWS[0]}, {"id": "a", **ROWS[1]}, {"id": "", **ROWS[2]}]

MISTAKES = (
    Mistake(
        1, "CSV with a byte order mark, read by csv.DictReader, given to ajet.tune",
        "the questions are read", ("python tune.py",), code=0, hides=("no text question",),
        shows=("What is", "Checkpoint"),
        files={"rows.csv": "\ufeff" + table("Question,answer"), "tune.py": FROM_CSV},
    ),
    Mistake(
        2, "columns Question and Answer, with capital letters",
        "the questions are read", (DRY,), code=0, shows=("What is 0 + 1?",), hides=("no text question",),
        files={"train.jsonl": json_lines([{"Question": row["question"], "Answer": row["answer"]} for row in ROWS])},
    ),
    Mistake(
        3, "a CSV named as JSON Lines",
        "the YAML that reads a CSV", (DRY,), shows=("rows.csv", "huggingface_dat_repo"),
        files={"rows.csv": table("question,answer"), "m.yaml": read_lines("rows.csv")},
    ),
    Mistake(
        4, "a CSV with semicolons, as a German spreadsheet writes it",
        "the questions are read, or the delimiter is named with the line to write", (DRY,), code=0,
        shows=("What is 0 + 1?",),
        files={"rows.csv": table("question;answer", ";"), "m.yaml": read_table("rows.csv")},
    ),
    Mistake(
        5, "a CSV in cp1252",
        "encoding and place are named, with the command that converts it", (DRY,),
        shows=("rows.csv", "iconv", "rows.csv:2"),
        files={"rows.csv": table("question,answer").replace("What", "Für").encode("cp1252"),
               "m.yaml": read_table("rows.csv")},
    ),
    Mistake(
        6, "JSON Lines in UTF-16, as PowerShell writes it",
        "encoding named, with the command that converts it", (DRY,), shows=("train.jsonl", "utf-16", "iconv"),
        files={"train.jsonl": json_lines(list(ROWS)).encode("utf-16")},
    ),
    Mistake(
        7, "a spreadsheet (.xlsx) named as JSON Lines",
        "a spreadsheet is named, with what to save it as", (DRY,), shows=("rows.xlsx", "CSV"),
        files={"rows.xlsx": make_workbook(), "m.yaml": read_lines("rows.xlsx")},
    ),
    Mistake(
        8, "a spreadsheet (.xlsx) as a data set",
        "the endings that are read", (DRY,), shows=("rows.xlsx", ".csv"),
        files={"rows.xlsx": make_workbook(), "m.yaml": read_table("rows.xlsx")},
    ),
    Mistake(
        9, "ids given twice, and an empty one",
        "said, and the rows are told apart by content", (DRY,), code=0,
        shows=("3 train", "train.jsonl:1", "train.jsonl:2", "train.jsonl:3", '"a"', "empty id"),
        files={"train.jsonl": json_lines(TWICE)},
    ),
    Mistake(
        10, "rows with `messages`, as for OpenAI's fine-tuning, and an agent that reads main_query",
        "debug says that the task has messages only, and what to read", ("ajet --conf m.yaml --backbone debug",),
        code=0, shows=("init_messages", "agent.py"),
        files={"train.jsonl": json_lines(CHAT)},
    ),
    Mistake(
        11, "rows whose `prompt` is a list of messages (TRL, verl), and an agent that reads main_query",
        "debug says that the task has messages only, and what to read", ("ajet --conf m.yaml --backbone debug",),
        code=0, shows=("init_messages", "agent.py"),
        files={"train.jsonl": json_lines(PROMPT)},
    ),
    Mistake(
        11, "rows whose question is in no column that is read",
        "refused before anything runs, with the columns found and the nearest name", (DRY,),
        shows=("train.jsonl", "questoin", "question"),
        files={"train.jsonl": json_lines([{"questoin": row["question"], "answer": row["answer"]} for row in ROWS])},
    ),
    Mistake(
        12, "the validation file is the training file",
        "the overlap is counted", (DRY,), code=0, shows=("12 of 12", "m.yaml:5"),
        files={"m.yaml": YAML.replace(
            "{training: {file_path: train.jsonl}}",
            "{training: {file_path: train.jsonl}, validation: {file_path: train.jsonl}}",
        )},
    ),
    Mistake(
        13, "a path with backslashes",
        "the nearest file", (DRY,), shows=("train.jsonl", "file_path"),
        files={"m.yaml": YAML.replace("file_path: train.jsonl", "file_path: '.\\train.jsonl'")},
    ),
    Mistake(
        14, "$HOME in a path of the YAML",
        "where it was looked for, and that variables are not expanded", (DRY,),
        shows=("$HOME/train.jsonl", "file_path", "does not expand"),
        files={"m.yaml": YAML.replace("file_path: train.jsonl", "file_path: $HOME/train.jsonl")},
    ),
)  # fmt: skip
