"""Tasks written by a model: knowledge questions from documents, and variations of example tasks.

In: documents, example tasks, a model at a server. Out: tasks for validation (from documents only) and training.
Invariant: each paid reply is written to disk before the next request, and requested again only if an input of the reply
changed; so reading is repeatable.
"""

from ajet_datagen.generation.reader import GenerationReader

__all__ = ["GenerationReader"]
