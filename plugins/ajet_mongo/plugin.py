"""Describe the MongoDB package for the plug-in registry, without loading its code."""

from __future__ import annotations

from ajet.config.plugin import Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_mongo",
    about="the store `mongodb`: tasks, episodes and leases for samplers and trainers on many machines",
    packages=("pymongo",),
    extra="mongo",
    stores={
        "mongodb": PluginPart(
            "ajet_mongo.driver:MongoDriver",
            variables=("AJET_STORE_USER", "AJET_STORE_PASSWORD"),
            schemes=("mongodb", "mongodb+srv"),
        ),
    },
)
