"""Bridges to whole agent and training frameworks, by their names: `aworld`, `trl`.

What enters: agents as their framework builds them. What leaves: workflows that every backbone plays, and launches of
runs. Invariant: a framework is imported only inside the folder that bears its name, and only when one of its agents is
played; nothing below this room knows of it.
"""
