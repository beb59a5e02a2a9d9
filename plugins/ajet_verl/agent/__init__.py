"""Code of verl's agent-loop processes: the agent loop, its host, and the manager of the processes.

The host runs gateway, workflow and judge. The manager replaces a dead process. Rows of verl, each with a ticket, become
rows of tokens for the trainer and messages for the record. Invariant: episodes run as on every backbone (`Host`).
"""
