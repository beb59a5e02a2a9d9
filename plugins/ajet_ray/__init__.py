"""Shared parts of the backbones on Ray: mailbox, tickets, episode host, rows, a run's record, and the cluster.

In: an experiment, and the resource demand of a backbone. Out: a Ray cluster for the run, and the notices and rows
exchanged with the run's own process. The package imports nothing: most processes need a single module.
"""
