"""What ajet knows of this package before its code is loaded."""

from __future__ import annotations

from ajet.config.plugin import Command, ConfigKeys, LaunchFlag, Plugin

PLUGIN = Plugin(
    name="ajet_toys",
    about="a part of every kind, for tests",
    backbones={"toy": "ajet_toys.descriptor:TOY"},
    engines={"toy_engine": "ajet_toys.engine:ToyDriver"},
    algorithms={"toy_ranks": "ajet_toys.algorithm:ToyAlgorithm"},
    losses={"toy_loss": "ajet_toys.loss:ToyLoss"},
    trackers={"toy_lines": "ajet_toys.tracker:ToyTracker", "toy_gone": "ajet_toys.tracker:ToyTrackerThatFails"},
    isolations={"toy_thread": "ajet_toys.isolation:ToyIsolation"},
    stores={"toy_memory": "ajet_toys.store:ToyStore"},
    readers={"toy_sums": "ajet_toys.reader:ToyReader"},
    workflows={"toy_agent": "ajet_toys.workflow:ToyWorkflow"},
    scorers={"toy_letters": "ajet_toys.scorer:count_letters"},
    sandboxes={"toy_box": "ajet_toys.sandbox:ToyMaker"},
    doctor_checks={"toy box": "ajet_toys.sandbox:check_boxes"},
    environments={"toy_world": "ajet_toys.world:serve_toy"},
    run_hooks=("ajet_toys.hook:note_run",),
    commands={"toy": Command("ajet_toys.command:toy", "Count to a number.")},
    launch_flags={"toy-bell": LaunchFlag("Ring before and after a run.", around="ajet_toys.bell:ring")},
    config_keys=(ConfigKeys("task_reader", "ajet_toys.keys:ToyReaderKeys"),),
)
