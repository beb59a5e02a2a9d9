"""The shared data types of all packages. The package imports no other package of ajet and has no side effects.

Invariant: a value is equal in memory, on disk, in a store, in the viewer and in the trainer. Token arrays are numpy
int32, log-probabilities float32. torch is never imported.
"""
