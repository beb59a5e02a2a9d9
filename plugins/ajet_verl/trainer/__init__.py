"""verl's trainer with ajet's parts: its process, credit and loss, and its messages to the run.

Rows of episodes come in, new weights in verl's servers and messages go out. Invariant: only `hooks` replaces private
methods of verl, for one version of verl, checked by a test.
"""
