"""`ajet prove`, and the sample that every step proves: what was recorded is derived again, and compared."""
