"""Judges (reward functions) that use language models: direct verdicts, rankings, and rubrics."""
