"""Worlds behind ajet's environment service: a class of the user's, or an environment of another ecosystem.

Invariant: there is one client, one protocol and one set of failures (`ajet.environment.services`); other ecosystems are
adapted behind ajet's own server (`hosted`, `openenv`, `nemo_gym`), never by a second client.
"""
