"""Proves the tokens of an episode from its recorded model calls alone, without files or weights."""
