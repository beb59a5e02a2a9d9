"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import ConfigKeys, Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_containers",
    about="a container per task for command agents, and Harbor's task folders",
    readers={
        "harbor": PluginPart("ajet_containers.harbor.reader:HarborReader", first_key=("path", "the task folders"))
    },
    workflows={"harbor": "ajet_containers.harbor.workflow:HarborWorkflow"},
    config_keys=(ConfigKeys("task_reader", "ajet_containers.harbor.reader:HarborKeys"),),
    exports={"HarborWorkflow": "ajet_containers.harbor.workflow:HarborWorkflow"},
    failure_hints={
        "no_model_call of HarborWorkflow": (
            "give the program's client the base URL and key from OPENAI_BASE_URL and OPENAI_API_KEY, or from "
            "ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY"
        ),
    },
)
