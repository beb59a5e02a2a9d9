"""ajet's code in Trinity's processes: tasks, episodes, credit and loss, at Trinity's extension points.

In: tickets, and replies of Trinity's engines. Out: episodes for the record, their timelines for Trinity's trainer.
Invariants: an episode is played, judged and credited as on every backbone; the explorer's step N is the trainer's step
N, complete.
"""
