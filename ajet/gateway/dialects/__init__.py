"""The client protocols. Each dialect parses requests into `ParsedRequest`s and formats `Reply`s as answers.

Invariant: no dialect touches tokens, calls or keys; a field is honoured, harmless, or refused by name.
"""
