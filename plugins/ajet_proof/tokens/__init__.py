"""Proofs of an episode's tokens from its calls alone."""
