"""Command-line options of `ajet cluster render slurm|kuberay`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Conf, ExpDir, Overrides
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

app = typer.Typer(help="Render job files for a cluster (verl).", no_args_is_help=True)


class ClusterScheduler(StrEnum):
    """The scheduler of the run."""

    slurm = "slurm"
    kuberay = "kuberay"


@app.command("render")
def render(
    scheduler: Annotated[ClusterScheduler, typer.Argument(metavar="slurm|kuberay", help="Scheduler of the cluster.")],
    conf: Conf = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Output file; default: standard output.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Working directory shared by all nodes (default: the YAML's folder).",
            show_default=False,
        ),
    ] = None,
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="Container image with ajet (kuberay).")] = "",
    claim: Annotated[
        str,
        typer.Option(
            "--claim",
            metavar="NAME[/SUBFOLDER]",
            help="Volume claim that contains the folder (kuberay); default: the folder exists on every node.",
        ),
    ] = "",
    exp_dir: ExpDir = None,
    overrides: Overrides = None,
) -> None:
    """Write a job for a run on verl: a batch script for Slurm, or a RayJob for KubeRay. No job is started."""
    from ajet.config import load_experiment
    from ajet.record.files import convert_os_errors, require_place
    from ajet_cluster.job import build_job
    from ajet_cluster.kuberay import render_kuberay
    from ajet_cluster.slurm import render_slurm

    if conf is None:
        usage = format_command("cluster", "render", scheduler.value, "--conf", "FILE.yaml")
        raise UserError("The required option --conf is missing.", expected=usage)
    if scheduler is ClusterScheduler.kuberay and not image:
        raise UserError(
            "The required option --image is missing.",
            expected="a container image with ajet[verl], such as REGISTRY/ajet:1",
        )
    if scheduler is ClusterScheduler.slurm and (image or claim):
        raise UserError(
            "--image and --claim are only for kuberay.", do="Slurm uses the environment that renders the script"
        )
    if out is not None:
        with convert_os_errors(out, "--out"):
            out.parent.mkdir(parents=True, exist_ok=True)
        require_place(out, "--out")
    experiment = load_experiment(conf, backbone="verl", overrides=overrides or (), exp_dir=exp_dir)
    job = build_job(experiment, folder=folder, exp_dir=exp_dir)
    text = (
        render_slurm(job)
        if scheduler is ClusterScheduler.slurm
        else render_kuberay(job, image=image, claim=claim or None)
    )
    if out is None:
        typer.echo(text, nl=False)
        return
    with convert_os_errors(out, "--out"):
        out.write_text(text, encoding="utf-8")
    start = "sbatch" if scheduler is ClusterScheduler.slurm else "kubectl apply -f"
    typer.echo(f"wrote {out}\nStart it:  {start} {out}")
