"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import JUDGES_PANEL, Command, ConfigKeys, Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_datagen",
    about="tasks written by a model from documents and examples, and tasks from an agent's traces",
    readers={
        "data_generation": PluginPart(
            "ajet_datagen.generation:GenerationReader", first_key=("document_reader.document_path", "the documents")
        ),
        "tracing": PluginPart("ajet_datagen.tracing:TracingReader", first_key=("sources", "the traces")),
    },
    embedders={"all-minilm-l6-v2": "ajet_datagen.embeddings:MiniLmEmbedder"},
    commands={
        "traces": Command(
            "ajet_datagen.traces:traces",
            "Make tasks, training rows and preference pairs from traces of a deployed agent.",
            panel=JUDGES_PANEL,
        ),
    },
    config_keys=(ConfigKeys("task_reader", "ajet_datagen.config:ReaderKeys"),),
)
