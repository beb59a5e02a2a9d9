"""Earlier names of what is in `ajet.backbone.verl`, which configurations of verl, batch scripts and records may hold.

Invariant: nothing of ours asks here, and nothing is defined here.
"""
