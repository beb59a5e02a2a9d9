"""The client protocols. Each parses its requests into `ParsedRequest`s and formats `Reply`s as its answers.

Invariant: no dialect touches tokens, calls or keys; a field is honoured, harmless, or refused by name.
"""
