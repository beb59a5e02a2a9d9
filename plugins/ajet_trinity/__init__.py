"""Trinity-RFT on Ray: its explorer plays ajet's episodes, its trainer uses ajet's credit and loss.

In: an experiment. Out: Trinity's complete config, and ajet's code for Trinity's processes. `launch` serves the command,
`train` runs in the run's own process, `processes` in Trinity's. Invariants: only Trinity's extension points are used,
by dotted paths; the run's own process imports nothing of Trinity; nothing of Trinity is changed except one name, to
replace dead runners (`processes/runners.py`), and, without an accelerator, the changes in `cpu`. An explorer step
equals a training step and a step of the record, and a run with too few steps has failed, whatever Trinity reports.
"""
