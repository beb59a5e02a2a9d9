"""The viewer: shows the recorded runs of a folder in a browser, and as tables in a terminal.

In: a folder of run directories, and a function that returns the text of token ids. Out: JSON for the package's page,
live over HTTP (`app`) or written into one HTML file (`export`). Invariants: files outside the folder are never read,
and only the user's notes are written. Model output reaches the page as text, never as markup. Unfinished lines, older
schemas and runs deleted meanwhile give partial answers.
"""
