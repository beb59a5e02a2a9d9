"""Finds the files of `model.path`, for `ajet.engine.models` to load.

Four kinds of path: `embedded:NAME` (shipped with ajet or inside a Python package), a folder in Hugging Face layout, a
`.gguf` file, a name on the Hugging Face hub. A missing path raises UserError within seconds, even without a network; so
does the name of a hosted model without public weights. Neither torch nor transformers is needed unless a .gguf must be
converted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.locations import find_cache_root
from ajet.config.other_models import OPENAI, read_api_key
from ajet.engine.model_cache import ProgressLines, find_entry
from ajet.schema.advice import advise_on_path
from ajet.schema.commands import find_python, format_command, format_list_command
from ajet.schema.errors import UserError, require_packages

if TYPE_CHECKING:
    from ajet.config import AjetConfig

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_OLLAMA_NAME = re.compile(r"([\w.-]+/)?[\w.-]+:[\w.-]+")
_HUB_SECONDS = 15.0
_HUB_WEIGHTS = "*.safetensors"
_HUB_FILES = ["*.json", _HUB_WEIGHTS, "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken"]


class HubUnreachableError(UserError):
    """The model is not on this machine, and the hub cannot be reached."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where the files of a model are. Exactly one of `folder` and `gguf_file` is set."""

    path: str
    """Path as written by the user."""
    folder: Path | None = None
    """Folder in Hugging Face layout: config.json, safetensors, tokenizer.json."""
    gguf_file: Path | None = None
    trust_remote_code: bool = False
    """True if Python code in `folder` may run; only set from `model.trust_remote_code` of a YAML."""


def locate_model(
    path: str,
    *,
    base: Path | None = None,
    weights: bool = True,
    trust_remote_code: bool = False,
) -> ModelSource:
    """Find the model at `path`, and download it if needed.

    Args:
        base: first folder for relative paths, before the working directory.
        weights: False to skip downloading the weights.

    Raises:
        UserError: the model cannot be found.
    """
    require_packages("transformers", extra="local", needed_for=f"The model {path}")
    source = _find_model(path, base, weights)
    return replace(source, trust_remote_code=trust_remote_code)


def locate_configured_model(config: AjetConfig, base: Path | None) -> ModelSource:
    """Find the model of `model.path`, and download it if needed. Raises UserError if it cannot be found."""
    assert config.model.path is not None, "require_ready asks for it"
    return locate_model(config.model.path, base=base, trust_remote_code=config.model.trust_remote_code)


def find_local_model(path: str, *, base: Path | None = None, weights: bool = True) -> Path | None:
    """Return the folder of model `path` if present on this machine and ready to load, else None.

    Starts no process, uses no network, converts no file: for code that only reads records.
    """
    if path.startswith("embedded:"):
        from ajet.engine.embedded import find_cached_folder

        return find_cached_folder(path.removeprefix("embedded:"))
    local = _find_path(path, base)
    if local is not None:
        try:
            source = _open_local(path, local)
        except (UserError, OSError):
            return None
        return source.folder or find_entry(name_gguf_entry(source.gguf_file))
    return None if _looks_local(path) else _find_in_hub_cache(path, weights)


def describe_download(path: str, *, base: Path | None = None) -> str:
    """Say in words what would be downloaded or converted to load a model that is not ready on this machine."""
    if path.startswith("embedded:"):
        from ajet.engine.embedded import describe_download as of_package

        return of_package(path.removeprefix("embedded:"))
    local = _find_path(path, base)
    if local is not None:
        return f"the file {local} would be converted, with all its weights, into {find_cache_root()}"
    from huggingface_hub import constants, get_token

    token = "; your Hugging Face token would be sent there" if get_token() else ""
    return f"{path!r} would be downloaded from {constants.ENDPOINT}{token}"


def name_gguf_entry(gguf: Path | None) -> str:
    """Return the cache name for the conversion of a .gguf file. A changed file gets another name."""
    assert gguf is not None, "a source is a folder or a file"
    file_stat = gguf.stat()
    identity = hashlib.sha256(f"{gguf}:{file_stat.st_size}:{file_stat.st_mtime_ns}".encode()).hexdigest()[:12]
    return f"models/{gguf.stem}-{identity}"


def _find_path(path: str, base: Path | None) -> Path | None:
    """Return the absolute path of a file or folder, searched in `base` and the working directory. None if absent."""
    try:
        relative = Path(path).expanduser()
        return next(
            (candidate.resolve() for root in (base, Path.cwd()) if root and (candidate := root / relative).exists()),
            None,
        )
    except (OSError, RuntimeError):  # path too long, or a home folder of an unknown user
        return None


def _find_model(path: str, base: Path | None, weights: bool) -> ModelSource:
    """Return the source of a model: an embedded model, a local folder or file, or a download from the hub."""
    if path.startswith("embedded:"):
        from ajet.engine.embedded import embedded_folder

        return ModelSource(path, folder=embedded_folder(path.removeprefix("embedded:"), ProgressLines()))
    local = _find_path(path, base)
    if local is not None:
        return _open_local(path, local)
    if _OLLAMA_NAME.fullmatch(path) and not path.endswith(".gguf"):
        raise UserError(
            f"{path} looks like a name of Ollama; ajet cannot load models from Ollama.",
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
    return ModelSource(path, folder=_download_from_hub(path, weights, do))


def _advise_on_maker(path: str, base: Path | None) -> str:
    """Return advice on how to make a missing model: a `make_model.py` next to the YAML, or the run of this name.

    Returns "" without advice.
    """
    if (run_match := re.search(r"(.*/)?([^/]+)/(?:checkpoints|exports)/step-\d+/?$", path)) is not None:
        list_command = format_list_command(Path(run_match[1] or "."))
        return (
            f"The run {run_match[2]} writes this model, and has not done so yet: start that run first. "
            f"`{list_command}` lists its checkpoints."
        )
    if (run := Path("launcher_record", path)).is_dir():
        return f"A run has this name; {_suggest_model_below(run) or 'it has no checkpoint yet.'}"
    if base is None or not (script := base / "make_model.py").is_file():
        return ""
    may_be_on_hub = not _looks_local(path)
    if may_be_on_hub and "/" in path and not (base / path).parent.is_dir():
        return ""  # org/model: not a folder of this project
    relative = os.path.relpath(script)
    script_name = str(script.absolute()) if relative.startswith(os.pardir) else relative
    advice = f"Create it by `{find_python()} {shlex.quote(script_name)} {shlex.quote(path)}`."
    return (
        f"{advice} If you mean a model on the Hugging Face hub, check its name and the network."
        if may_be_on_hub
        else advice
    )


_EXPECTED = "a folder with config.json and weights, a .gguf file, a Hugging Face name (org/model), or embedded:NAME"


def is_local(path: str, base: Path | None = None) -> bool:
    """True if `path` can only be local, or exists on this machine."""
    return not path.startswith("embedded:") and (_looks_local(path) or _find_path(path, base) is not None)


def _looks_local(path: str) -> bool:
    """Return True if the text can only be a path on this machine, not a name on the hub."""
    return path.startswith((".", "/", "~")) or path.endswith(".gguf") or not _HUB_NAME.fullmatch(path)


def _open_local(path: str, local_path: Path) -> ModelSource:
    """Return the source of a local model: a .gguf file, a model folder, or a folder with one .gguf file. Raises
    UserError.

    Args:
        path: the path as written by the user.
        local_path: the existing file or folder.
    """
    if local_path.is_file():
        with local_path.open("rb") as handle:
            magic = handle.read(4)
        if magic == b"GGUF":
            return ModelSource(path, gguf_file=local_path)
        raise UserError(f"{local_path} is not a model.", where="model.path", expected=_EXPECTED)
    if (local_path / "config.json").is_file():
        return ModelSource(path, folder=local_path)
    gguf_files = sorted(local_path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return ModelSource(path, gguf_file=gguf_files[0])
    problem = f"contains {len(gguf_files)} .gguf files" if gguf_files else "has no config.json"
    do = (
        "Set model.path to one of them: " + ", ".join(f.name for f in gguf_files[:5])
        if gguf_files
        else _suggest_model_below(local_path)
    )
    raise UserError(f"The folder {local_path} {problem}.", where="model.path", expected=_EXPECTED, do=do)


def _suggest_model_below(folder: Path) -> str:
    """Suggest a model below a folder, preferring a run's newest checkpoint. Return "" if there is none."""
    for pattern in ("checkpoints/step-*", "step-*", "exports/step-*", "snapshots/*", "*"):
        models = [path for path in folder.glob(pattern) if (path / "config.json").is_file()]
        if models:
            return f"did you mean the model in {max(models, key=_step_and_time)}?"
    if (folder / "run.json").is_file() and any(folder.glob("checkpoints/step-*")):
        return f"`{format_command('export', folder)}` writes a model folder from its last checkpoint"
    return ""


def _step_and_time(model: Path) -> tuple[int, float]:
    """Return the sort key of a model folder: its training step, -1 without one, then the time of its last change."""
    step = re.fullmatch(r"step-(\d+)", model.name)
    return int(step[1]) if step else -1, model.stat().st_mtime


def _list_patterns(weights: bool) -> list[str]:
    """Return the patterns of the files to download from the hub."""
    return [pattern for pattern in _HUB_FILES if weights or pattern != _HUB_WEIGHTS]


def _find_in_hub_cache(name: str, weights: bool) -> Path | None:
    """Return the model in the hub's cache if all needed files are present."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=_list_patterns(weights)))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    is_complete = (cached / "config.json").is_file() and (not weights or any(cached.glob(_HUB_WEIGHTS)))
    return cached if is_complete else None


def _download_from_hub(name: str, weights: bool, do: str) -> Path:
    """Return the model's folder in the hub's cache, after a download if files are missing.

    Args:
        weights: False to skip the weights.
        do: advice for the error if the hub lacks the model.

    Raises:
        UserError: the hub lacks the model, refuses it or cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    patterns = _list_patterns(weights)
    cached = _find_in_hub_cache(name, weights)
    if cached is not None:
        return cached
    key = "model.path"
    _check_reachable(name, key, do)
    ProgressLines()(f"downloading {name}", 0, 0)
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, etag_timeout=_HUB_SECONDS))
    except GatedRepoError:
        do = "Accept the model's terms on the Hugging Face hub and set HF_TOKEN."
        raise UserError(
            f"The Hugging Face hub gives the model {name!r} only to users who accepted its terms.", where=key, do=do
        ) from None
    except RepositoryNotFoundError:
        raise UserError(f"The Hugging Face hub has no model {name!r}.", where=key, expected=_EXPECTED, do=do) from None
    except (HfHubHTTPError, OSError) as error:
        raise UserError(f"The model {name!r} could not be downloaded: {error}", where=key, do=do) from error


def _check_reachable(name: str, where: str, do: str) -> None:
    """Request the model from the hub once with a timeout, because the hub's client retries for minutes when offline.

    Raises:
        HubUnreachableError: the hub cannot be reached.
        UserError: the hub lacks the model, or the model is private.
    """
    import httpx
    from huggingface_hub import constants

    local = f"There is no folder {name!r}, and the Hugging Face cache does not contain the model"
    if constants.HF_HUB_OFFLINE:
        message = f"{local}; HF_HUB_OFFLINE forbids a download."
        raise HubUnreachableError(message, where=where, expected=_EXPECTED, do=do)
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
        raise UserError(
            f"The Hugging Face hub has no model {name!r}, or the model is private.",
            where=where,
            expected=_EXPECTED,
            do=do,
        )


_OPENAI_NAME = re.compile(r"(?:openai/)?(gpt-[345].*|chatgpt-.+|o[1-9](?:-(?:mini|pro|preview).*)?)")
_OTHER_NAME = re.compile(
    r"(?:(?:anthropic|google|gemini|x-ai|xai|deepseek|dashscope)/)?"
    r"(claude-.+|gemini-.+|grok-.+|deepseek-(?:chat|reasoner)|qwen-(?:max|plus|turbo|long|flash).*)"
)


def refuse_hosted(name: str, expected: str = "") -> None:
    """Raise UserError if `name` is a model that exists only as a hosted service.

    Its weights are not available for training. The message says how to evaluate it.
    """
    openai_match, other_match = _OPENAI_NAME.fullmatch(name), _OTHER_NAME.fullmatch(name)
    if (match := openai_match or other_match) is None:
        return
    model = f"{match[1]}@{OPENAI if openai_match else 'https://HOST/v1'}"
    evaluation = format_command("eval", "FILE.yaml", "--model", model)
    raise UserError(
        f"{name} is a hosted model: its weights cannot be downloaded, so ajet cannot train it.",
        where="model.path",
        expected=expected,
        do=f"train a model with open weights; to measure {match[1]} on the tasks: {evaluation}",
    )
