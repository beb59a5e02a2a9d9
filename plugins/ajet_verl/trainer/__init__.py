"""verl's trainer with what is ours in it: the process that it runs in, our credit and loss, and what it tells the run.

In: rows of episodes. Out: new weights in verl's servers, and letters. Invariant: what verl keeps private and we replace
is in `hooks` alone, for one version of verl, held by a test.
"""
