"""`ajet doctor`: check the machine, the packages, the network and a model before a run.

Invariants: no setting is changed, no weights are loaded, no process is left running. Only a finding of state `problem`
makes the verdict bad: a `problem` would stop a run or make the run train on wrong tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.backbones import find_backbone, list_shipped_backbones
from ajet.config.plugins import find_doctor_checks, try_load
from ajet.schema.errors import ConfigError, Finding

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ajet.config import Experiment

_EXTRA_OF_ENGINE = {"vllm": "vllm"}


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings of `ajet doctor` by section, and the seconds that the checks took."""

    sections: Mapping[str, list[Finding]]
    seconds: float

    @property
    def healthy(self) -> bool:
        """True if no finding is a problem."""
        return all(finding.state != "problem" for findings in self.sections.values() for finding in findings)

    def plain(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        sections = {title: [asdict(finding) for finding in findings] for title, findings in self.sections.items()}
        return {"healthy": self.healthy, "seconds": round(self.seconds, 2), "sections": sections}


def examine(model: str | None, experiment: Experiment | None, *, exp_dir: Path) -> Checkup:
    """Make all checks of the machine, the packages, the backbones, the network, the experiment and the model.

    Args:
        model: The model to check. None: the experiment's model, if any.
        experiment: The experiment to check. None: only the machine and the model are checked.
        exp_dir: Folder of runs, whose disk is checked without an experiment.
    """
    from ajet.commands.doctor_checks import check_machine, check_model, check_network, check_packages
    from ajet.commands.runner import load_runner

    started = time.perf_counter()
    config = experiment.ajet if experiment is not None else None
    folder = experiment.root if experiment is not None else exp_dir
    extras = []
    if experiment is not None:
        extras = [experiment.backbone.extra, _EXTRA_OF_ENGINE.get(experiment.ajet.rollout.engine)]
    sections = {"machine": check_machine(folder), "packages": check_packages([extra for extra in extras if extra])}
    own_backbone = experiment.backbone if experiment is not None else None
    backbones = [*list_shipped_backbones().values(), *([own_backbone] if own_backbone else [])]
    for name in dict.fromkeys(descriptor.name for descriptor in backbones):
        backbone = find_backbone(name)
        if findings := load_runner(backbone).checkup(config, needed=backbone is own_backbone):
            sections[name] = findings
    sections["network"] = check_network(config)
    for title, check in find_doctor_checks().items():
        if findings := _run_check(title, check, experiment, model):
            sections[title] = findings
    if experiment is not None:
        sections["experiment"] = [_check_experiment(experiment)]
    if model is None and experiment is not None and experiment.ajet.rollout.engine != "endpoint":
        model = experiment.ajet.model.path
    if model is not None:
        sections["model"] = check_model(model, experiment.base if experiment is not None else None, config)
    return Checkup(sections, time.perf_counter() - started)


def examine_store(address: str) -> Checkup:
    """Check only the store at an address. Raises UserError if the address is invalid."""
    from ajet.store.opening import survey

    started = time.perf_counter()
    return Checkup({"store": survey(address, base=Path.cwd())}, time.perf_counter() - started)


def _run_check(title: str, check: str, experiment: Experiment | None, model: str | None) -> list[Finding]:
    """Return the findings of a plug-in's check, or a warning if its code cannot be loaded.

    Args:
        title: Section of the findings.
        check: Reference to the check's function.
    """
    function, problem = try_load(check)
    if problem:
        return [Finding(title, "warning", f"{check} cannot be loaded: {problem}")]
    findings: list[Finding] = function(experiment, model)
    return findings


def _check_experiment(experiment: Experiment) -> Finding:
    """Return whether a run of the experiment could start, as a finding."""
    try:
        experiment.require_ready(previewing=True)
    except ConfigError as error:
        return Finding(experiment.name, "problem", error.what, error.do or error.expected)
    return Finding(experiment.name, "ok", f"complete; backbone {experiment.ajet.backbone}")


def table(checkup: Checkup) -> RenderableType:
    """Return the findings as a text with tables for the terminal, and a last line with the number of problems."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warn", "yellow"), "problem": ("FAIL", "red")}
    renderables: list[RenderableType] = []
    for title, findings in checkup.sections.items():
        rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        rows.add_column(no_wrap=True)
        rows.add_column(no_wrap=True)
        rows.add_column(overflow="fold")
        for finding in findings:
            mark, style = marks[finding.state]
            text = Text(finding.text)
            if finding.do:
                text.append(f"{'; ' if finding.state == 'note' else chr(10)}{finding.do}", style="dim")
            rows.add_row(Text(mark, style), Text(finding.topic), text)
        renderables += [Text(title, "bold"), rows, Text()]
    states = [finding.state for findings in checkup.sections.values() for finding in findings]
    problems, warnings = states.count("problem"), states.count("warning")
    verdict = "No problem" if not problems else f"{problems} problem{'s' * (problems > 1)}"
    summary = f"{verdict}, {warnings} warning{'s' * (warnings != 1)} ({checkup.seconds:.1f} s)"
    return Group(*renderables, Text(summary, "bold green" if checkup.healthy else "bold red"))
