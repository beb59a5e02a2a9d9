"""What ajet knows of this package before its code is loaded."""

from __future__ import annotations

from ajet.config.plugin import REMOTE_PANEL, Command, ConfigKeys, Plugin

WORLD = "ajet_environments.services.serving:serve_locally"
PLUGIN = Plugin(
    name="ajet_environments",
    about="environments hosted by ajet: tool servers behind one address, worlds, and services that run with a run",
    environments={
        "class": WORLD,
        "gymnasium": WORLD,
        "textarena": WORLD,
        "skyrl": WORLD,
        "openenv": WORLD,
        "nemo_gym": WORLD,
    },
    readers={"env_service": "ajet_environments.reader:EnvServiceReader"},
    services=("ajet_environments.services.reachable:list_services",),
    run_hooks=("ajet_environments.run_hook:run_services",),
    commands={
        "env": Command(
            "ajet_environments.cli.env:app",
            "Start and check environments: tools and worlds in which agents act.",
            panel=REMOTE_PANEL,
        )
    },
    config_keys=(ConfigKeys("", "ajet_environments.config:ServiceKeys"),),
)
