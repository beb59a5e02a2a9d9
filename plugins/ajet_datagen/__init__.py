"""Task readers `data_generation` (tasks written by a model from documents and examples) and `tracing` (tasks from
traces of a deployed agent).
"""
