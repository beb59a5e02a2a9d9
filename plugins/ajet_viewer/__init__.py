"""The viewer: recorded runs of a folder, as browser pages and terminal tables.

In: a folder of run directories, and a function that spells token ids. Out: JSON for the package's page, live over HTTP
(`app`) or frozen into one file (`export`). Invariants: files outside the folder are never read, and only a person's
notes are written; model output reaches the page as text, never as markup; unfinished lines, older schemas and runs
deleted meanwhile give partial answers.
"""
