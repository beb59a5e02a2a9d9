"""`ajet observe`: an HTTP proxy (the relay) before a model endpoint, which records an agent's calls as episodes.

Invariant: forwarded data is never changed and never waits for a disk. The gateway's parsers (dialects) read the
requests, and `ajet.gateway.remote_reply` the replies.
"""
