"""Worlds behind ajet's own environment service: a class of the user's, or one of another ecosystem.

Invariant: there is one client, one protocol and one set of failures (`ajet.environment.services`); another ecosystem is
brought in behind our own server (`hosted`, `openenv`, `nemo_gym`), never by a second client.
"""
