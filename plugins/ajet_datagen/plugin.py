"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Command, ConfigKeys, Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_datagen",
    about="tasks that a model writes of documents and examples, and tasks of a deployed agent's traces",
    readers={
        "data_generation": PluginPart(
            "ajet_datagen.generation:GenerationReader", first_key=("document_reader.document_path", "the documents")
        ),
        "tracing": PluginPart("ajet_datagen.tracing:TracingReader", first_key=("sources", "the traces")),
    },
    embedders={"all-minilm-l6-v2": "ajet_datagen.embeddings:MiniLmEmbedder"},
    commands={
        "traces": Command(
            "ajet_datagen.traces:traces", "Make tasks, rows to learn and pairs of what a deployed agent said."
        ),
    },
    config_keys=(ConfigKeys("task_reader", "ajet_datagen.config:ReaderKeys"),),
)
