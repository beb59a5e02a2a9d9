"""`ajet sft`: learning from replies that are given: rows of a file, or what a recorded run said best.

In: an experiment whose `sft.objective` says what is learned. Out: the run folder, checkpoints and curve of a training.
Invariant: what is given becomes lessons (`lessons`), episodes whose tokens nobody of this run sampled; the ledger, the
optimizer, the record and the proof are those of a training (`ajet.train.loop`): a killed run goes on bit for bit.
"""
