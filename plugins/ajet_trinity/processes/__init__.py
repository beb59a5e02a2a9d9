"""ajet's code in Trinity's processes: tasks, episodes, credit and loss, at Trinity's extension points.

In: tickets (the trainer's claims on groups), and replies of Trinity's engines. Out: episodes for the run's folder, and
their timelines (token sequences) for Trinity's trainer. Invariants: an episode runs, is judged and gets its advantage
as on every backbone. The explorer's step N is the trainer's step N, complete.
"""
