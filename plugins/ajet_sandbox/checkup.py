"""Checks of `ajet doctor` on sandboxes: whether each mechanism works, and whether the selected one isolates.

Invariant: a check leaves the machine unchanged. The full table of attacks is a test.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys
from ajet.record.process_identity import read_start_ticks
from ajet.schema.errors import Finding, SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_sandbox.choose import AUTOMATIC, ENGINES, Trial, advise_setup, open_sandbox, try_mechanism
from ajet_sandbox.inside.kernel import read_landlock_version
from ajet_sandbox.inside.open_rule import LEAST_ABI

if TYPE_CHECKING:
    from ajet.config import Experiment


REACHED = f"reached-{secrets.token_hex(8)}"
"""Printed by a successful probe."""


def check_sandboxes(experiment: Experiment | None, model: str | None) -> list[Finding]:
    """Return the findings of `ajet doctor` about sandboxes.

    A failing sandbox named by the experiment is a problem. No working sandbox at all is only a note, since not every
    agent runs code. The selected sandbox is started and tested, unless the check is about a model or the experiment
    sets no sandbox key.

    Args:
        experiment: None for a check without a YAML.
        model: the model of a check about a model; else None.
    """
    config = experiment.ajet if experiment is not None else None
    should_probe = model is None and (experiment is None or _sets_sandbox(experiment))
    configured = config.environment.sandbox if config is not None else "auto"
    image = SandboxKeys.of(config).sandbox_image if config is not None else None
    trials = [try_mechanism(name, image if name in ENGINES else None) for name in AUTOMATIC]
    isolates_workers = config is not None and config.rollout.isolation == "sandbox"  # it knows bubblewrap only
    findings = [
        _describe_trial(trial, needed=trial.mechanism in (configured, "bubblewrap" if isolates_workers else configured))
        for trial in trials
    ]
    if configured == "none":
        text = "environment.sandbox is none: model-written code runs as the current user"
        return [*findings, Finding("none", "warning", text, "environment.sandbox: auto")]
    usable = [trial for trial in trials if trial.works and configured in ("auto", trial.mechanism)]
    if not usable:
        return [
            *findings,
            Finding("sandbox", "note", "no sandbox for model-written code works on this machine", advise_setup()),
        ]
    return [*findings, *(probe_walls(usable[0].mechanism, image) if should_probe else [])]


def _sets_sandbox(experiment: Experiment) -> bool:
    """Return True if the YAML sets any sandbox key."""
    return any(name.startswith("ajet.environment.sandbox") for name in experiment.list_set_keys())


def _describe_trial(trial: Trial, *, needed: bool) -> Finding:
    """Return the finding about one tested mechanism; a failure is a problem if the mechanism is needed, else a note."""
    if not trial.works:
        return Finding(trial.mechanism, "problem" if needed else "note", trial.why, advise_setup() if needed else "")
    has_own_user = os.geteuid() == 0 or trial.mechanism in ENGINES
    user_note = (
        "each sandbox has its own user" if has_own_user else "in a user namespace or confined, as the current user"
    )
    text = f"works; {trial.memory_held_by} limits the memory of a process tree; {user_note}"
    if trial.mechanism == "bubblewrap" and read_landlock_version() < LEAST_ABI:
        text += "; code can read a .env file that changes while it runs (no Landlock of Linux 5.19)"
    return Finding(trial.mechanism, "ok", text)


def probe_walls(mechanism: str, image: str | None) -> list[Finding]:
    """Try to reach a file, the network and a process of this machine from inside a sandbox, and return the findings.

    Each probe prints REACHED if it gets through.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="ajet-doctor-") as folder, socket.socket() as listener:
            secret = Path(folder, "secret")
            secret.write_text(REACHED)
            secret.chmod(0o600)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            codes = {
                "file": f"print(open({str(secret)!r}).read())",
                "network": f"socket.create_connection({listener.getsockname()!r}, 1); print({REACHED!r})",
                "process": f"""
                    import signal
                    os.kill({os.getpid()}, 0)
                    ticks = int(open('/proc/{os.getpid()}/stat').read().rpartition(')')[2].split()[19])
                    print({REACHED!r} if ticks == {read_start_ticks(os.getpid())} else '')""",
            }
            limits = Limits(wall=4)
            box = open_sandbox(mechanism, limits, image=image if mechanism in ENGINES else None)
            try:
                replies = {wall: box.python(f"import os, socket\n{dedent(code)}") for wall, code in codes.items()}
            finally:
                box.close()
    except (SandboxFailure, OSError) as error:
        return [Finding("walls", "warning", f"the sandbox could not be tested: {error}")]
    open_walls = [wall for wall, reply in replies.items() if REACHED.encode() in reply.stdout]
    if not open_walls:
        return [Finding("walls", "ok", f"{mechanism}: code inside reaches no file, network or process of this machine")]
    text = f"{mechanism}: code inside reaches this machine: {', '.join(open_walls)}"
    return [Finding("walls", "warning", text, "do not run code on this machine that you have not read")]


class SandboxLimits(Section):
    """Limits of a call in a sandbox. A call beyond a limit is ended with the reason."""

    wall: float = key(30.0, "Seconds of elapsed time.", gt=0)
    cpu: int = key(30, "CPU seconds of each process.", ge=1)
    memory: int = key(512, "MiB of all processes together, and of the address space of each.", ge=64)
    processes: int = key(64, "Number of processes and threads at the same time.", ge=4)
    files: int = key(1024, "Number of open files of each process.", ge=16)
    disk: int = key(256, "MiB in the working folder, and as many in /tmp.", ge=1)
    output: int = key(1 << 20, "Bytes of standard output and error together.", ge=1024)


class SandboxKeys(PluginKeys):
    """Options of the mechanism named by `environment.sandbox`."""

    sandbox_limits: SandboxLimits = section(
        SandboxLimits,
        "Limits of one call in a sandbox. With `rollout.isolation: sandbox`, `memory`, `processes`, `files` and "
        "`disk` limit a complete attempt.",
    )
    sandbox_python: str | None = key(
        None,
        "A Python whose packages code in a sandbox can import, such as `tools/.venv/bin/python`; null: ajet's "
        "own Python with the standard library only.",
        kind="path",
    )
    sandbox_root: str | None = key(
        None,
        "A folder that code in a sandbox sees as / (an unpacked image, with Python 3.10 or later at "
        "/usr/bin/python3); null: this machine's programs, read-only. Needs bubblewrap.",
        kind="path",
    )
    sandbox_image: str | None = key(
        None,
        "Image for containers, with a `python3` of 3.10 or later; ajet downloads none; null: "
        "docker.io/library/python:3.12-slim. Needs podman or docker.",
    )
