"""`ajet sft`: training on given replies, which are rows of a file or the best episodes of a recorded run.

Input: an experiment with `sft.objective`. Output: the run folder, checkpoints and curve of a training.
Invariant: given replies become lessons (`lessons`), episodes whose tokens this run did not sample. Store, optimizer,
record and proof are those of a training (`ajet.train.loop`), so a killed run resumes bit for bit.
"""
