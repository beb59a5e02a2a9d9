"""Images of tasks: an image by name, or one built from a folder with a Dockerfile.

Invariant: the name of a built image is the digest of its folder's content and its base images, so it is built once and
never out of date. Neither the image nor a base image is pulled.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from functools import lru_cache
from pathlib import Path

from loguru import logger

from ajet.config.locations import find_cache_root
from ajet.record.lock import alone
from ajet.schema.errors import SandboxFailure
from ajet_containers.container import ContainerEngine
from ajet_sandbox.engine import find_image_problem, run_engine

NAME = "localhost/ajet-task"
SHOWN = 1_500
"""Characters of a failed build's output in the error."""


@lru_cache(maxsize=10_000)
def require_image(engine: ContainerEngine, image: str) -> str:
    """Return the image's name. Raises SandboxFailure if it is not on this machine."""
    if problem := find_image_problem(engine.name, image):
        raise SandboxFailure(problem, retryable=False)
    return image


@lru_cache(maxsize=10_000)
def build_image(engine: ContainerEngine, folder: Path, *, network: bool, timeout: float) -> str:
    """Return the name of the image of a build folder, which is built unless it exists.

    Args:
        network: True if commands of the Dockerfile may use the network.
        timeout: seconds for the build.

    Raises:
        SandboxFailure: a base image is missing, or the build fails.
    """
    bases = [_identify_base(engine, base) for base in list_base_images(folder / "Dockerfile")]
    image = f"{NAME}:{digest_folder(folder, *bases)[:24]}"
    with alone(find_cache_root() / "containers" / f"{image.rpartition(':')[2]}.lock", f"building {image}"):
        if not find_image_problem(engine.name, image):
            return image
        logger.info("{} builds the image of {}", engine.name, folder)
        argv = [engine.program, "build", "--tag", image, "--label", "ajet-task=1"]
        argv += (
            ["--pull=never"] if engine.name == "podman" else []
        )  # docker pulls only missing base images, and none is missing
        argv += ["--network", "host" if network else "none", str(folder)]
        try:
            result = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxFailure(f"the image of {folder} cannot be built: {error}", retryable=False) from error
    if result.returncode:
        output = result.stdout.decode(errors="replace").strip()[-SHOWN:]
        hint = "" if network else " (its commands have no network: `container.build_network: true` gives it)"
        raise SandboxFailure(f"the image of {folder} cannot be built{hint}:\n{output}", retryable=False)
    return image


def list_base_images(file: Path) -> list[str]:
    """Return the images of a Dockerfile's FROM lines, without stages of the file. Raises SandboxFailure."""
    stages, images = {"scratch"}, []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        words = [word for word in line.split() if not word.startswith("--")]
        if len(words) < 2 or words[0].upper() != "FROM":
            continue
        if "$" in words[1]:
            raise SandboxFailure(f"{file}: a base image by an argument ({words[1]}) is not supported", retryable=False)
        if words[1].lower() not in stages:
            images.append(words[1])
        stages |= {word.lower() for word in words[3:4]}  # the name after `FROM image AS`
    return images


def _identify_base(engine: ContainerEngine, image: str) -> str:
    """Return the id of a base image, which changes with its content. Raises SandboxFailure if it is missing."""
    require_image(engine, image)
    return run_engine(engine.program, "image", "inspect", "--format", "{{.Id}}", image).stdout.decode().strip()


def digest_folder(folder: Path, *more: str) -> str:
    """Return the digest of all names, modes and contents below a folder, and of further texts."""
    digest = hashlib.sha256(" ".join(more).encode())
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).digest()
        name = os.fsencode(str(path.relative_to(folder)))
        digest.update(b"%d %o %s\0%s\0" % (len(name), status.st_mode, name, content))
    return digest.hexdigest()
