"""Observing: a relay in front of an endpoint that records an agent's calls as episodes.

Invariant: passing data is never changed and never waits for a disk. The gateway's dialects parse the requests, and
`ajet.gateway.remote_reply` the replies, as for a chat engine.
"""
