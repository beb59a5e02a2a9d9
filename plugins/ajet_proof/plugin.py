"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import RECORDS_PANEL, Command, ConfigKeys, Plugin

PLUGIN = Plugin(
    name="ajet_proof",
    about="proofs of recorded episodes, of each training step, and audits of a run's record",
    step_observers=("ajet_proof.recorded.each_step:StepProof",),
    commands={
        "prove": Command(
            "ajet_proof.cli.prove:prove",
            "Derive recorded episodes again, token by token. Exit code 1 if a token or log-probability is wrong.",
            panel=RECORDS_PANEL,
        ),
        "audit": Command(
            "ajet_proof.cli.audit:audit",
            "Check that a run's files are unchanged; trace an update back to episodes, and an episode to updates.",
            panel=RECORDS_PANEL,
        ),
    },
    config_keys=(ConfigKeys("context_tracker", "ajet_proof.config:ProofKeys"),),
)
