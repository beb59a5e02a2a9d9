"""The scorer `code`: unit tests on a program that a model wrote, which runs in a sandbox."""
