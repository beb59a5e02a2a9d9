"""Tasks that a model writes: knowledge questions from documents, variations of example tasks.

In: documents, example tasks, a model of another server. Out: tasks for validation (from documents alone) and training.
Invariant: what a model was paid for is on the disk before the next thing is asked, and is asked again only where
something that changes the answer has changed; so reading is as repeatable as from a file.
"""

from ajet_datagen.generation.reader import GenerationReader

__all__ = ["GenerationReader"]
