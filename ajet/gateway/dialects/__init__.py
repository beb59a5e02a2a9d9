"""dialects: what clients speak. Each translates its requests into `TurnRequest`s and `Turn`s into its replies.

Invariant: no dialect touches tokens, calls or keys; a field is honoured, or harmless, or refused by name.
"""
