"""Parses the options of `ajet optimize-prompt` and prints the held-out comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import ExpDir, Overrides, print_reading

_SEARCH, _EPISODES = "Search", "Episodes"


def optimize_prompt(
    conf: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The YAML of the experiment.", show_default=False)],
    key: Annotated[
        str,
        typer.Option(
            "--key", metavar="KEY", show_default=False, rich_help_panel=_SEARCH,
            help="Key with the prompt, such as my_agent.system_prompt or rollout.mcp_agent.system_prompt.",
        ),
    ],
    reflect: Annotated[
        str,
        typer.Option(
            "--reflect", metavar="MODEL", show_default=False, rich_help_panel=_SEARCH,
            help="The model that reads attempts and writes prompts, at OPENAI_BASE_URL with OPENAI_API_KEY.",
        ),
    ],
    overrides: Overrides = None,
    budget: Annotated[
        int, typer.Option("--budget", metavar="N", min=1, help="Attempts at training tasks.", rich_help_panel=_SEARCH)
    ] = 500,
    select_on: Annotated[
        int,
        typer.Option(
            "--select-on", metavar="N", min=1, rich_help_panel=_SEARCH,
            help="Training tasks that select the prompt; reflection sees the others. At most half.",
        ),
    ] = 32,
    minibatch: Annotated[
        int, typer.Option("--minibatch", metavar="N", min=1, help="Tasks of a reflection.", rich_help_panel=_SEARCH)
    ] = 4,
    perfect: Annotated[
        float,
        typer.Option(
            "--perfect", metavar="REWARD", rich_help_panel=_SEARCH,
            help="Reward that cannot be improved: minibatches that reach it cause no reflection.",
        ),
    ] = 1.0,
    at_most: Annotated[
        int | None,
        typer.Option(
            "--at-most", metavar="N", min=1, help="Use the first N held-out tasks.", show_default=False,
            rich_help_panel=_EPISODES,
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", metavar="K", min=1, help="Attempts at each task.", show_default=False,
            rich_help_panel=_EPISODES,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", metavar="T", min=0.0, show_default=False, rich_help_panel=_EPISODES,
            help="Sampling temperature; 0: greedy. Default: rollout.val_kwargs.",
        ),
    ] = None,
    exp_dir: ExpDir = None,
) -> None:  # fmt: skip
    """Optimize the agent's prompt by a reflecting model (GEPA), and compare it on held-out tasks."""
    print_reading(conf)
    from ajet.cli.screen import show_logs
    from ajet.commands.evaluation.play import EvaluationOptions
    from ajet.commands.evaluation.report import print_report
    from ajet.config import load_experiment
    from ajet_gepa.optimizer import BEST, PromptOptions
    from ajet_gepa.optimizer import optimize_prompt as run

    show_logs("WARNING")
    experiment = load_experiment(conf, backbone="debug", overrides=overrides or (), exp_dir=exp_dir)
    evaluation = EvaluationOptions(at_most=at_most, repeats=repeat, temperature=temperature)
    result = run(experiment, PromptOptions(key, reflect, budget, select_on, minibatch, perfect, evaluation))
    print_report(result.held_out)
    if result.best == result.start:
        typer.echo("No better prompt was found.")
    else:
        typer.echo(
            f"The best prompt is in {result.folder / BEST}; write it to {key} in {conf} to use or train with it."
        )
