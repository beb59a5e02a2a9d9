"""What verl's agent-loop processes run: the loop that verl calls, the host of gateway, workflow and judge behind it,
and the manager that replaces a process which has died.

In: verl's rows, each with a ticket. Out: rows of tokens for its trainer, and letters to the record. Invariant: an
episode is played here as on every backbone (`host`).
"""
