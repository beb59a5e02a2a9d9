"""Shared parts of the backbones (training systems) on Ray, verl and Trinity.

They are the mailbox between processes, tickets (the trainer's claims on groups), the episode host, trainer rows, the
run's record on disk, and the cluster. In: an experiment, and the resource demand of a backbone. Out: a Ray cluster for
the run, and the notices and rows exchanged with the run's own process. The package imports nothing: most processes
need a single module.
"""
