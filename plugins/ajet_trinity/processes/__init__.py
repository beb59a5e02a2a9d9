"""What runs in Trinity's processes: our tasks, episodes, credit and loss, at Trinity's extension points.

In: tickets, and replies of Trinity's engines. Out: episodes to the record, their timelines to Trinity's trainer.
Invariants: an episode is played, judged and credited here as on every backbone; what the explorer played in step N is
what the trainer takes in step N, whole.
"""
