"""Trinity-RFT on Ray: its explorer plays our episodes, its trainer takes our credit and loss.

In: an experiment. Out: Trinity's whole config, and what Trinity's processes need of ours. `launch` is what a run asks
of it, `train` what happens in the run's own process, `processes` what happens in Trinity's. Invariants: Trinity's own
extension points, by dotted paths; nothing of it is imported in the run's own process, and nothing of it is changed but
one name, so that runners that die are replaced (`processes/runners.py`), and on machines without an accelerator what
`cpu` says; an explorer step is a training step is a step of the record, and a run that
took fewer than it was asked for has failed, whatever Trinity says of it.
"""
