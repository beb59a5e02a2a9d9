"""Judges: models of other servers, and rubrics that they write and grade by."""
