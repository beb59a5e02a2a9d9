"""Task readers that make tasks: of documents and examples, written by a model, and of traces of a deployed agent."""
