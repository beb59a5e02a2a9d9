"""A container engine for tests: podman with a store of its own, and an image made of this machine's own Python. Nothing
is fetched; where podman is not installed, or cannot start a container here, tests that need it are skipped."""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import psutil

import ajet
from ajet.config.plugin import GROUP
from ajet.config.plugins import list_plugins
from ajet_testing.packages import find_plugins

IMAGE = "localhost/ajet-test-python:1"
PACKAGE = "packed_in_the_image"
"""A module that it brings, whose `word` is "packed"."""
NOTES = Path(__file__).with_name("notes_server.py")
"""An MCP server over stdio, at the image's root."""
AJET_IMAGE = "localhost/ajet-test-ajet:1"
"""With ajet, and what `ajet env up` imports."""
NETWORK = "ajet-pods"
_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
enable_port_reservation = false
[network]
network_config_dir = "{networks}"
"""
"""What an unprivileged root needs, where nobody has set up podman; and two pods may have one port."""
_NETWORK = {
    "cniVersion": "0.4.0", "name": NETWORK, "plugins": [{
        "type": "bridge", "bridge": "ajetpods0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.251.7.0/24"}]]},
    }],
}  # fmt: skip
"""Pods with addresses that this machine reaches, and no iptables."""
_STORE = '[storage]\ndriver = "{driver}"\ngraphroot = "{place}/{driver}"\nrunroot = "{run}/{driver}"\n'
_PACKAGES = """
    aiohappyeyeballs aiohttp aiosignal annotated_doc annotated_types anyio attr attrs certifi click dotenv frozenlist
    h11 httpcore httptools httpx idna loguru markdown_it mdurl multidict numpy numpy.libs packaging propcache psutil
    pydantic pydantic_core pygments python_multipart rich shellingham sniffio starlette typer typing_extensions.py
    typing_inspection uvicorn yaml yarl
"""
"""Of this Python's, those that `ajet env up` imports."""
_PROGRAMS = "bash cat chmod env git ln ls mkdir mkfifo rm setsid sh sleep tar yes"
_LEFT_OUT = re.compile(r"/(test|tests|idlelib|ensurepip|lib2to3|tkinter|turtledemo|dist-packages|config-[^/]*)(/|$)")


@lru_cache(maxsize=1)
def lacks_podman() -> str:
    """Why there is none; "" when one is set up, for this process and what it starts."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    if not os.path.exists("/usr/bin/python3"):
        return "this machine has no Python of which an image could be made"
    place = tempfile.mkdtemp(prefix="pytest-of-podman-")
    run = tempfile.mkdtemp(prefix="pm-", dir="/tmp")  # beyond 50 characters podman hears of no container's end
    atexit.register(_remove, place, run)  # its name is one that the last look leaves out: it goes later
    Path(place, "networks").mkdir()
    Path(place, "networks", f"{NETWORK}.conflist").write_text(json.dumps(_NETWORK))
    Path(place, "containers.conf").write_text(_CONFIG.format(networks=f"{place}/networks"))
    os.environ["CONTAINERS_CONF"] = f"{place}/containers.conf"
    os.environ["CONTAINERS_STORAGE_CONF"] = f"{place}/storage.conf"
    image = _image()
    for driver in ("overlay", "vfs"):
        Path(place, "storage.conf").write_text(_STORE.format(driver=driver, place=place, run=run))
        if not (why := _imported(image)):
            return ""
    return f"podman starts nothing here: {why}"


@lru_cache(maxsize=1)
def lacks_ajet_image() -> str:
    """Why there is no image of ajet; "" when it is made."""
    if why := lacks_podman():
        return why
    site, ours = Path(psutil.__file__).parents[1], Path(ajet.__file__).parent
    packages = {name: site / name for name in _PACKAGES.split() if (site / name).exists()}
    packages |= {"ajet": ours, **find_plugins(ours.parent), "ajet-0.dist-info": _write_entry_points()}
    added = {f"/usr/lib/python3/dist-packages/{name}": path for name, path in packages.items()}
    return _imported(_image(added), AJET_IMAGE, "import ajet_environments.hosting.program, ajet.cli.launcher")


def _write_entry_points() -> Path:
    """Write what an installation of ajet says of its plug-ins into a folder of its own, and return that."""
    folder = Path(tempfile.mkdtemp(prefix="pytest-of-podman-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    lines = [f"{each.place.partition('.')[0]} = {each.place}" for each in list_plugins() if each.distribution == "ajet"]
    (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    return folder


def unpack_image(folder: Path) -> Path:
    """The root folder of `IMAGE`, for what needs no engine."""
    with tarfile.open(fileobj=io.BytesIO(_image())) as image:
        image.extractall(folder, filter="tar")
    return folder


def remove_network() -> None:
    """With its bridge."""
    subprocess.run(["podman", "network", "rm", "--force", NETWORK], capture_output=True)


def _imported(image: bytes, name: str = IMAGE, tried: str = "pass") -> str:
    """Why it cannot be imported and started; "" where it can."""
    words = ["podman", "import", "--quiet", "--change", "ENV PATH=/usr/bin:/bin", "-", name]
    done = subprocess.run(words, input=image, capture_output=True)
    if not done.returncode:
        words = ["podman", "run", "--rm", "--network", "none", "--log-driver", "none", name, "python3", "-c", tried]
        done = subprocess.run(words, capture_output=True)
    return done.stderr.decode().strip()[-300:] if done.returncode else ""


@lru_cache(maxsize=1)
def lacks_docker() -> str:
    """The same for docker's command, which speaks to podman's service."""
    if shutil.which("docker") is None:
        return "docker's command is not installed"
    if why := lacks_podman():
        return why
    place = tempfile.mkdtemp(prefix="pytest-of-docker-")
    service = subprocess.Popen(
        ["podman", "system", "service", "--time", "0", f"unix://{place}/socket"], stdin=subprocess.DEVNULL, cwd=place
    )
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    atexit.register(service.wait)
    atexit.register(service.terminate)
    os.environ["DOCKER_HOST"] = f"unix://{place}/socket"
    for _ in range(200):
        if subprocess.run(["docker", "ps"], capture_output=True).returncode == 0:
            return ""
        time.sleep(0.05)
    return "podman's service does not answer"


def _remove(*folders: str) -> None:
    subprocess.run(["podman", "rm", "--all", "--force"], capture_output=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _image(added: Mapping[str, Path] = MappingProxyType({})) -> bytes:
    """A root folder as a tar: the distribution's Python, its standard library, a shell, what these are linked to; and
    what is `added`, by its place."""
    version = os.path.basename(os.path.realpath("/usr/bin/python3"))
    programs = [found for name in _PROGRAMS.split() if (found := shutil.which(name, path="/usr/bin:/bin")) is not None]
    library = f"/usr/lib/{version}"
    compiled = [each for folder in (Path(library), *added.values()) for each in folder.rglob("*.so")]
    linked = _linked([f"/usr/bin/{version}", *programs, *map(str, compiled)])
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as image:
        for path in (f"/usr/bin/{version}", *programs, *linked):
            image.add(os.path.realpath(path), path)
        image.add("/usr/bin/python3", "/usr/bin/python3") if version != "python3" else None
        image.add(library, library, filter=lambda each: None if _LEFT_OUT.search(f"/{each.name}") else each)
        for folder, mode in (("tmp", 0o1777), ("etc", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            image.addfile(entry)
        entry = tarfile.TarInfo("bin")
        entry.type, entry.linkname = tarfile.SYMTYPE, "usr/bin"
        image.addfile(entry)
        image.add(NOTES, f"/{NOTES.name}")
        for where, path in added.items():
            image.add(path, where, filter=lambda each: None if "__pycache__" in each.name else each)
        if added:
            entry = tarfile.TarInfo("/usr/bin/ajet")
            entry.mode, program = 0o755, b'#!/usr/bin/sh\nexec python3 -m ajet "$@"\n'
            entry.size = len(program)
            image.addfile(entry, io.BytesIO(program))
        entry = tarfile.TarInfo(f"/usr/lib/python3/dist-packages/{PACKAGE}.py")
        entry.size = len(b"word = 'packed'")
        image.addfile(entry, io.BytesIO(b"word = 'packed'"))
    return whole.getvalue()


def _linked(programs: list[str]) -> list[str]:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    return sorted({each for each in re.findall(r"(/\S+) \(0x", said) if each.startswith(("/lib", "/usr/lib"))})
