"""Environment services: an HTTP server around a user's environment class, or around an environment of another library.

Invariant: the rollout has one client, one protocol and one set of failures (`ajet.environment.services`). Other
libraries are adapted behind ajet's own server (`hosted`, `openenv`, `nemo_gym`), never by a second client.
"""
