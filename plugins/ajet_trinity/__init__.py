"""Trinity-RFT on Ray: its explorer runs ajet's episodes, its trainer uses ajet's advantages and loss.

Input: an experiment. Output: Trinity's complete config, and ajet's code for Trinity's processes. `launch` serves the
command, `train` runs in the run's own process, `processes` in Trinity's. Invariants: only Trinity's extension points
are used, by dotted paths. The run's own process never imports Trinity. Trinity stays unchanged except for a single
name, to replace dead runners (`processes/credit.py`), and, without an accelerator, the changes in `cpu`. An explorer
step equals a training step and a step in the run's folder. A run with too few steps has failed, whatever Trinity
reports.
"""
