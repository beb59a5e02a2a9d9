"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import MAIN_PANEL, RECORDS_PANEL, Command, LaunchFlag, Plugin

PLUGIN = Plugin(
    name="ajet_viewer",
    about="recorded runs in a browser, as tables in a terminal, and as a bundle for an issue",
    commands={
        "view": Command(
            "ajet_viewer.cli.view:view", "Show runs in a browser: curves, episodes, tokens.", panel=MAIN_PANEL
        ),
        "runs": Command("ajet_viewer.cli.runs:runs", "List the runs: state, step, reward, age.", panel=RECORDS_PANEL),
        "episodes": Command(
            "ajet_viewer.cli.runs:episodes", "Print the conversations of a run's worst episodes.", panel=RECORDS_PANEL
        ),
        "compare": Command(
            "ajet_viewer.cli.compare:compare",
            "Compare runs, or groups of runs that differ in their seed: curves, held-out results, steps, time.",
            panel=RECORDS_PANEL,
        ),
        "report": Command(
            "ajet_viewer.cli.report:report",
            "Collect what an issue needs of a run, without secrets: versions, settings, the log's end, two episodes.",
            panel=RECORDS_PANEL,
        ),
    },
    launch_flags={"logview": LaunchFlag("Serve the viewer during the run.", around="ajet_viewer.view:view_run")},
)
