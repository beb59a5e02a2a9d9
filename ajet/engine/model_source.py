"""Where a model's files are: `model.path` in, a place that `ajet.engine.models` loads from out.

Four kinds of path: `embedded:NAME` (shipped with ajet, or inside a Python package), a folder in Hugging Face layout,
a `.gguf` file, a name on the Hugging Face hub. A path that cannot be found is a UserError within seconds, also
without a network. Needs neither torch nor transformers unless a .gguf has to be converted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ajet.engine.model_cache import Progress, ProgressLines
from ajet.schema.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_SECONDS = 15.0
_HUB_WEIGHTS = "*.safetensors"
_HUB_FILES = ["*.json", _HUB_WEIGHTS, "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found. Exactly one of `folder` and `gguf_file` is set; `hub` names where `folder` came from."""

    path: str
    """As the user wrote it."""
    folder: Path | None = None
    """Hugging Face layout: config.json, safetensors, tokenizer.json."""
    gguf_file: Path | None = None
    hub: str | None = None


def locate(
    path: str, *, base: Path | None = None, progress: Progress | None = None, weights: bool = True
) -> ModelSource:
    """Find the model `path` names; fetch it if it must be fetched, without its `weights` if those are not needed.
    Relative paths are tried from `base`, then from the working directory. Raises UserError."""
    progress = progress or ProgressLines()
    if path.startswith("embedded:"):
        from ajet.engine.embedded import embedded_folder

        return ModelSource(path, folder=embedded_folder(path.removeprefix("embedded:"), progress))
    for root in (base, Path.cwd()):
        if root is None:
            continue
        place = root / Path(path).expanduser()
        if place.exists():
            return _local(path, place.resolve())
    if _looks_local(path):
        raise UserError(
            f"There is no model at {path!r}.",
            where="model.path",
            expected=_EXPECTED,
            do="Correct the path, or use embedded:smollm2-135m, which needs no other files.",
        )
    return ModelSource(path, folder=_from_hub(path, progress, weights), hub=path)


_EXPECTED = "a folder with config.json and weights, a .gguf file, a Hugging Face name (org/model), or embedded:NAME"


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.endswith(".gguf") or not _HUB_NAME.fullmatch(path)


def _local(path: str, place: Path) -> ModelSource:
    if place.is_file():
        with place.open("rb") as handle:
            magic = handle.read(4)
        if magic == b"GGUF":
            return ModelSource(path, gguf_file=place)
        raise UserError(f"{place} is not a model.", where="model.path", expected=_EXPECTED)
    if (place / "config.json").is_file():
        return ModelSource(path, folder=place)
    found = sorted(place.glob("*.gguf"))
    if len(found) == 1:
        return ModelSource(path, gguf_file=found[0])
    what = f"holds {len(found)} .gguf files" if found else "has no config.json"
    do = "Name one of them: " + ", ".join(f.name for f in found[:5]) if found else ""
    raise UserError(f"The folder {place} {what}.", where="model.path", expected=_EXPECTED, do=do)


def _from_hub(name: str, progress: Progress, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    wanted = [pattern for pattern in _HUB_FILES if weights or pattern != _HUB_WEIGHTS]
    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=wanted))
        if (cached / "config.json").is_file() and (not weights or any(cached.glob(_HUB_WEIGHTS))):
            return cached
    except LocalEntryNotFoundError:
        pass
    where, do = "model.path", "Check the name and the network, or use a local folder or embedded:smollm2-135m."
    _check_reachable(name, where, do)
    progress(f"downloading {name}", 0, 0)
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, etag_timeout=_HUB_SECONDS))
    except GatedRepoError:
        do = "Accept its terms on the hub and set HF_TOKEN."
        raise UserError(f"The model {name!r} is gated.", where=where, do=do) from None
    except RepositoryNotFoundError:
        raise UserError(f"The hub has no model {name!r}.", where=where, expected=_EXPECTED, do=do) from None
    except (HfHubHTTPError, OSError) as error:
        raise UserError(f"The model {name!r} could not be downloaded: {error}", where=where, do=do) from error


def _check_reachable(name: str, where: str, do: str) -> None:
    """Ask the hub for the model once, with a bound on the time: the hub's client retries for minutes when offline."""
    import httpx
    from huggingface_hub import constants

    local = f"There is no folder {name!r} and the model is not in the hub's cache"
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{local}; HF_HUB_OFFLINE forbids to download it.", where=where, expected=_EXPECTED)
    token = os.environ.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.get(f"{constants.ENDPOINT}/api/models/{name}", headers=headers, timeout=_HUB_SECONDS)
    except (httpx.HTTPError, OSError) as error:
        raise UserError(
            f"{local}; the hub ({constants.ENDPOINT}) cannot be reached: {error}",
            where=where,
            expected=_EXPECTED,
            do=do,
        ) from None
    if reply.status_code in (401, 404):
        raise UserError(f"The hub has no model {name!r}, or it is private.", where=where, expected=_EXPECTED, do=do)
