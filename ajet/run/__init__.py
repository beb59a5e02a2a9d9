"""The verbs (launch, debug, train, chat, ...): each a file that reads from top to bottom, or a folder (proof, serving).

In: an `Experiment`. Out: an exit code and a run directory. Invariant: a verb only wires rooms together and states
their order; what a step *is* lives in the rooms it names.
"""
