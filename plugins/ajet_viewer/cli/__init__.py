"""Commands of `ajet` that look at recorded runs."""
