"""Uses the tuned model of a finished run: `ajet deploy` serves it, `ajet chat` talks to it."""
