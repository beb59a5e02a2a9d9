"""Code of verl's agent-loop processes: the agent loop, its host, and the manager of the processes.

The host runs gateway, workflow and judge. The manager replaces a dead process. Each row of verl's data set holds a
ticket, the trainer's claim on one group. It becomes rows of tokens for the trainer, and messages for the run's folder.
Invariant: episodes run as on every backbone (`Host`).
"""
