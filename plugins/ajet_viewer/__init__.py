"""The viewer: what runs left in a folder, as pages for a browser and as tables for a terminal.

What enters: a folder of run directories, and a function that spells token ids. What leaves: JSON for a page that comes
with the package, live over HTTP (`app`) or frozen into one file (`export`). Invariants: nothing outside the given
folder is read, and nothing inside it is written but a person's notes; whatever a model wrote reaches the page as text,
never as markup; a line that is being written, an older schema, a run that is deleted meanwhile are answered with what
there is.
"""
