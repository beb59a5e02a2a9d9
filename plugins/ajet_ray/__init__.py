"""What the backbones on Ray share: mailbox, tickets, agent host, rows, record of a run, cluster.

In: an experiment, and the demand of a backbone. Out: a Ray cluster for the time of a run, and the letters and rows that
its processes exchange with the one that the person started. Nothing is imported here: most processes need no more than
one module from below.
"""
