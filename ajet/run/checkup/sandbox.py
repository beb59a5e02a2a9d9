"""Sandboxes: which mechanisms work here, each tried, and whether the one to be used holds against a table of attacks.

Invariant: the attacks harm nothing, use little, and are over in a few seconds; nothing is left of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ajet.environment.sandbox.choose import AUTOMATIC, ENGINES, Trial, tried, what_helps
from ajet.environment.sandbox.inside.kernel import landlock_version
from ajet.environment.sandbox.inside.open_rule import LEAST_ABI
from ajet.schema.errors import SandboxFailure
from ajet.schema.finding import Finding

if TYPE_CHECKING:
    from ajet.config import AjetConfig


def sandbox(config: AjetConfig | None, *, attacked: bool = True) -> list[Finding]:
    """`attacked`: whether the table is run, which takes seconds. A sandbox that the experiment names and that does not
    work here is a problem; that there is none, only a note: not every agent runs code."""
    wanted = config.environment.sandbox if config is not None else "auto"
    image = config.environment.sandbox_image if config is not None else None
    trials = [tried(name, image if name in ENGINES else None) for name in AUTOMATIC]
    whole = config is not None and config.rollout.isolation == "sandbox"  # it knows bubblewrap only
    found = [_mechanism(each, needed=each.mechanism in (wanted, "bubblewrap" if whole else wanted)) for each in trials]
    if wanted == "none":
        text = "environment.sandbox is none: code that the model writes runs as this user"
        return [*found, Finding("none", "warning", text, "environment.sandbox: auto")]
    usable = [each for each in trials if each.works and wanted in ("auto", each.mechanism)]
    if not usable:
        return [*found, Finding("sandbox", "note", "none here for code that a model writes", what_helps())]
    return [*found, *(_attacks(usable[0].mechanism, image) if attacked else [])]


def _mechanism(trial: Trial, *, needed: bool) -> Finding:
    if not trial.works:
        return Finding(trial.mechanism, "problem" if needed else "note", trial.why, what_helps() if needed else "")
    own = os.geteuid() == 0 or trial.mechanism in ENGINES
    who = "each sandbox a user of its own" if own else "in a user namespace or confined, as this user"
    text = f"works; memory of a tree is held by {trial.memory_held_by}; {who}"
    if trial.mechanism == "bubblewrap" and landlock_version() < LEAST_ABI:
        text += "; a .env file that changes while code runs can be read there (no Landlock of Linux 5.19)"
    return Finding(trial.mechanism, "ok", text)


def _attacks(mechanism: str, image: str | None) -> list[Finding]:
    from ajet.environment.sandbox.attacks import LIMITS, run_attacks
    from ajet.environment.sandbox.choose import open_sandbox
    from ajet.environment.sandbox.targets import targets

    try:
        with targets() as doors:
            box = open_sandbox(mechanism, LIMITS, image=image if mechanism in ENGINES else None)
            try:
                verdicts = run_attacks(box, doors)
            finally:
                box.close()
    except (SandboxFailure, OSError) as error:
        return [Finding("attacks", "warning", f"they could not be run: {error}")]
    held = [each.attack for each in verdicts if each.outcome == "held"]
    within = [f"{each.attack}: {each.detail}" for each in verdicts if each.outcome == "held within"]
    through = [each for each in verdicts if not each.held]
    found = [Finding("attacks", "ok", f"{mechanism} held against {len(held)} of {len(verdicts)}: {', '.join(held)}")]
    found += [Finding("attacks", "note", f"held within: {each}") for each in within]
    found += [
        Finding("attacks", "warning", f"got through: {each.attack} ({each.detail})", "do not run unread code here")
        for each in through
    ]
    return found
