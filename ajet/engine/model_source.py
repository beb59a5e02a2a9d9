"""Where a model's files are: `model.path` in, a place that `ajet.engine.models` loads from out.

Four kinds of path: `embedded:NAME` (shipped with ajet, or inside a Python package), a folder in Hugging Face layout,
a `.gguf` file, a name on the Hugging Face hub. A path that cannot be found is a UserError within seconds, also
without a network; so is the name of a hosted model, whose weights no one can download. Needs neither torch nor
transformers unless a .gguf has to be converted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.config.locations import find_cache_root
from ajet.config.other_models import OPENAI, read_api_key
from ajet.engine.model_cache import Progress, ProgressLines, find_entry
from ajet.schema.advice import advise_on_path
from ajet.schema.commands import find_python, format_command, format_list_command
from ajet.schema.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_OLLAMA_NAME = re.compile(r"([\w.-]+/)?[\w.-]+:[\w.-]+")
_HUB_SECONDS = 15.0
_HUB_WEIGHTS = "*.safetensors"
_HUB_FILES = ["*.json", _HUB_WEIGHTS, "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken"]


class HubUnreachableError(UserError):
    """The model is not on this machine, and the hub cannot be asked for it."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found. Exactly one of `folder` and `gguf_file` is set."""

    path: str
    """As the user wrote it."""
    folder: Path | None = None
    """Hugging Face layout: config.json, safetensors, tokenizer.json."""
    gguf_file: Path | None = None
    trust_remote_code: bool = False
    """Whether Python code in `folder` may be run: only as `model.trust_remote_code` of a YAML says."""


def locate_model(
    path: str,
    *,
    base: Path | None = None,
    progress: Progress | None = None,
    weights: bool = True,
    trust_remote_code: bool = False,
) -> ModelSource:
    """Find the model `path` names; fetch it if it must be fetched, without its `weights` if those are not needed.
    Relative paths are tried from `base`, then from the working directory. Raises UserError."""
    found = _find_model(path, base, progress or ProgressLines(), weights)
    return replace(found, trust_remote_code=trust_remote_code)


def find_local_model(path: str, *, base: Path | None = None, weights: bool = True) -> Path | None:
    """The folder, in Hugging Face layout, of the model `path` if it lies on this machine ready to be loaded; else None.
    Starts no process, reaches no network, converts nothing: for who looks at a record."""
    if path.startswith("embedded:"):
        from ajet.engine.embedded import find_cached_folder

        return find_cached_folder(path.removeprefix("embedded:"))
    place = _find_path(path, base)
    if place is not None:
        try:
            source = _open_local(path, place)
        except (UserError, OSError):
            return None
        return source.folder or find_entry(name_gguf_entry(source.gguf_file))
    return None if _looks_local(path) else _find_in_hub_cache(path, weights)


def describe_download(path: str, *, base: Path | None = None) -> str:
    """A sentence on what `locate_model` and loading would do for a model that is not at hand."""
    if path.startswith("embedded:"):
        from ajet.engine.embedded import describe_download as of_package

        return of_package(path.removeprefix("embedded:"))
    place = _find_path(path, base)
    if place is not None:
        return f"the file {place} would be converted, with all its weights, into {find_cache_root()}"
    from huggingface_hub import constants, get_token

    token = "; your token for the hub would be sent there" if get_token() else ""
    return f"{path!r} would be downloaded from {constants.ENDPOINT}{token}"


def name_gguf_entry(gguf: Path | None) -> str:
    """The cache's name of what a .gguf file is converted to."""
    assert gguf is not None, "a source is a folder or a file"
    about = gguf.stat()
    identity = hashlib.sha256(f"{gguf}:{about.st_size}:{about.st_mtime_ns}".encode()).hexdigest()[:12]
    return f"models/{gguf.stem}-{identity}"


def _find_path(path: str, base: Path | None) -> Path | None:
    try:
        named = Path(path).expanduser()
        return next((place.resolve() for root in (base, Path.cwd()) if root and (place := root / named).exists()), None)
    except (OSError, RuntimeError):  # too long for a path, or the home of nobody
        return None


def _find_model(path: str, base: Path | None, progress: Progress, weights: bool) -> ModelSource:
    if path.startswith("embedded:"):
        from ajet.engine.embedded import embedded_folder

        return ModelSource(path, folder=embedded_folder(path.removeprefix("embedded:"), progress))
    place = _find_path(path, base)
    if place is not None:
        return _open_local(path, place)
    if _OLLAMA_NAME.fullmatch(path) and not path.endswith(".gguf"):
        raise UserError(
            f"{path} looks like a name of Ollama's, and models are not taken from Ollama.",
            where="model.path",
            expected=_EXPECTED,
            do="write the model's name on Hugging Face, such as Qwen/Qwen2.5-0.5B-Instruct, or the path of its folder "
            "or .gguf file",
        )
    if _looks_local(path):
        raise UserError(
            f"There is no model at {path!r}.",
            where="model.path",
            expected=_EXPECTED,
            do=advise_on_path(path)
            or _advise_on_maker(path, base)
            or "Correct the path, or use embedded:smollm2-135m, which needs no other files.",
        )
    refuse_hosted(path, _EXPECTED)
    do = (
        _advise_on_maker(path, base)
        or "Check the name and the network, or use a local folder or embedded:smollm2-135m."
    )
    return ModelSource(path, folder=_download_from_hub(path, progress, weights, do))


def _advise_on_maker(path: str, base: Path | None) -> str:
    """What to do first where something makes the model that is not there: a `make_model.py` beside the YAML, or a run
    that the path names; "" where nothing is known to."""
    if (of_run := re.search(r"(.*/)?([^/]+)/(?:checkpoints|exports)/step-\d+/?$", path)) is not None:
        listed = format_list_command(Path(of_run[1] or "."))
        return f"The run {of_run[2]} makes it, and has not yet: begin with that. `{listed}` lists those there are."
    if base is None or not (script := base / "make_model.py").is_file():
        return ""
    of_hub = not _looks_local(path)
    if of_hub and "/" in path and not (base / path).parent.is_dir():
        return ""  # org/model: no folder of this project's
    near = os.path.relpath(script)
    named = str(script.absolute()) if near.startswith(os.pardir) else near
    makes = f"`{find_python()} {shlex.quote(named)} {shlex.quote(path)}` makes it."
    return f"{makes} If a model of the hub is meant, check its name and the network." if of_hub else makes


_EXPECTED = "a folder with config.json and weights, a .gguf file, a Hugging Face name (org/model), or embedded:NAME"


def is_local(path: str, base: Path | None = None) -> bool:
    """Whether `path` can only be a folder or a file of this machine, or is one."""
    return not path.startswith("embedded:") and (_looks_local(path) or _find_path(path, base) is not None)


def _looks_local(path: str) -> bool:
    return path.startswith((".", "/", "~")) or path.endswith(".gguf") or not _HUB_NAME.fullmatch(path)


def _open_local(path: str, place: Path) -> ModelSource:
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
    do = "Name one of them: " + ", ".join(f.name for f in found[:5]) if found else _suggest_model_below(place)
    raise UserError(f"The folder {place} {what}.", where="model.path", expected=_EXPECTED, do=do)


def _suggest_model_below(folder: Path) -> str:
    """Return which model below a folder is probably meant, the newest checkpoint of a run first; "" for none."""
    for pattern in ("checkpoints/step-*", "step-*", "exports/step-*", "snapshots/*", "*"):
        models = [each for each in folder.glob(pattern) if (each / "config.json").is_file()]
        if models:
            return f"did you mean {max(models, key=_step_and_time)}?"
    if (folder / "run.json").is_file() and any(folder.glob("checkpoints/step-*")):
        return f"{format_command('export', folder)} makes a model folder of its last checkpoint"
    return ""


def _step_and_time(model: Path) -> tuple[int, float]:
    step = re.fullmatch(r"step-(\d+)", model.name)
    return int(step[1]) if step else -1, model.stat().st_mtime


def _list_patterns(weights: bool) -> list[str]:
    return [pattern for pattern in _HUB_FILES if weights or pattern != _HUB_WEIGHTS]


def _find_in_hub_cache(name: str, weights: bool) -> Path | None:
    """The model in the hub's cache, if all that is needed is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=_list_patterns(weights)))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    is_complete = (cached / "config.json").is_file() and (not weights or any(cached.glob(_HUB_WEIGHTS)))
    return cached if is_complete else None


def _download_from_hub(name: str, progress: Progress, weights: bool, do: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    wanted = _list_patterns(weights)
    cached = _find_in_hub_cache(name, weights)
    if cached is not None:
        return cached
    where = "model.path"
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
        what = f"{local}; HF_HUB_OFFLINE forbids to download it."
        raise HubUnreachableError(what, where=where, expected=_EXPECTED, do=do)
    token = read_api_key("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.get(f"{constants.ENDPOINT}/api/models/{name}", headers=headers, timeout=_HUB_SECONDS)
    except (httpx.HTTPError, OSError) as error:
        raise HubUnreachableError(
            f"{local}; the hub ({constants.ENDPOINT}) cannot be reached: {error}",
            where=where,
            expected=_EXPECTED,
            do=do,
        ) from None
    if reply.status_code in (401, 404):
        raise UserError(f"The hub has no model {name!r}, or it is private.", where=where, expected=_EXPECTED, do=do)


_OPENAI_NAME = re.compile(r"(?:openai/)?(gpt-[345].*|chatgpt-.+|o[1-9](?:-(?:mini|pro|preview).*)?)")
_OTHER_NAME = re.compile(
    r"(?:(?:anthropic|google|gemini|x-ai|xai|deepseek|dashscope)/)?"
    r"(claude-.+|gemini-.+|grok-.+|deepseek-(?:chat|reasoner)|qwen-(?:max|plus|turbo|long|flash).*)"
)


def refuse_hosted(name: str, expected: str = "") -> None:
    """Raise UserError if `name` is that of a hosted model: it cannot be tuned, but tasks can be evaluated with it."""
    of_openai, other = _OPENAI_NAME.fullmatch(name), _OTHER_NAME.fullmatch(name)
    if (found := of_openai or other) is None:
        return
    model = f"{found[1]}@{OPENAI if of_openai else 'https://HOST/v1'}"
    evaluation = format_command("eval", "FILE.yaml", "--model", model)
    raise UserError(
        f"{name} is a hosted model: its weights cannot be downloaded, so it cannot be tuned here.",
        where="model.path",
        expected=expected,
        do=f"tune an open model; see how {found[1]} does at the tasks: {evaluation}",
    )
