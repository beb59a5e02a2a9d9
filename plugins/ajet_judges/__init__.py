"""Judges: models at servers, and rubrics written and applied by models."""
