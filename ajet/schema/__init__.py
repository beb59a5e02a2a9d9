"""The vocabulary: the nouns every other room speaks in. Imports nothing of ours, does nothing.

Invariant: a value here is the same in memory, on disk, in a store, in the viewer and in the trainer. Token arrays
are numpy int32, logprobs float32; torch never enters.
"""
