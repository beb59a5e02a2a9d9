"""The scorer `code`: unit tests on a model's program, run in a sandbox."""
