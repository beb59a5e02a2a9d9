"""`ajet sft`: train on given replies, from rows of a file or the best episodes of a recorded run.

Input: an experiment with `sft.objective`. Output: the run folder, checkpoints and curve of a training. Invariant: given
replies become lessons (`lessons`), episodes with tokens not sampled by the run. Store, optimizer, record and proof are
the same as in a training (`ajet.train.loop`), so a killed run resumes bit for bit.
"""
