"""The task reader `data_generation`: a language model writes knowledge questions and variations of example tasks.

Input: documents, example tasks, a model at a server. Output: tasks for validation (from documents only) and training.
Invariant: each paid reply is written to disk before the next request, and requested again only if an input of the reply
changed, so a second run reads the same tasks.
"""

from ajet_datagen.generation.reader import GenerationReader

__all__ = ["GenerationReader"]
