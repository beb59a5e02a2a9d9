"""The checks of `ajet doctor`: machine, packages, network and model. Each check returns findings and never raises."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import psutil

from ajet.backbone.requirements import check_requirements, find_installed_version, has_nvidia
from ajet.client.proxies import explain_proxies
from ajet.engine.machine import measure_main_memory
from ajet.record.processors import usable_cpus
from ajet.schema.commands import explain_python_bound, format_extra_install, format_install, format_own_install
from ajet.schema.errors import Finding, State, UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from ajet.config.schema import AjetConfig
    from ajet.tokens import Renderer


_GIB = 2**30
_NVIDIA_SECONDS = 5.0
FEW_GIB = 4.0
"""Free memory in GiB below which even small models train badly."""
LITTLE_GIB, NO_GIB = 5.0, 0.5
"""Free disk in GiB: below the first, checkpoints of a small model may not fit. Below the second, no run should
start.
"""


def check_machine(folder: Path) -> list[Finding]:
    """Check Python, processors, memory, GPUs and disk, within the limits of this process.

    Args:
        folder: Folder of the runs, whose disk is checked.
    """
    python = Finding("python", "ok", f"{sys.version.split()[0]} ({sys.executable})")
    return [python, _check_cores(), _check_memory(), *_check_gpus(), _check_disk(folder)]


def _check_cores() -> Finding:
    """Return the number of usable cores and the load, with a warning if other programs use most of them."""
    usable_cores = usable_cpus() or 1
    load = psutil.getloadavg()[0]
    text = f"{usable_cores} usable cores, load {load:.1f}"
    if load > usable_cores * 0.75:
        do = "stop other programs: on a busy processor small training steps take many times longer"
        return Finding("cores", "warning", text, do)
    return Finding("cores", "ok", text)


def _check_memory() -> Finding:
    """Return the size of the main memory, with a warning if little is free."""
    total, free = measure_main_memory()
    text = f"{total / _GIB:.1f} GiB, {free / _GIB:.1f} free"
    if free < FEW_GIB * _GIB:
        return Finding("memory", "warning", text, "use a small model, or free memory")
    return Finding("memory", "ok", text)


def _check_gpus() -> list[Finding]:
    """Return the NVIDIA GPUs with their memory, and a warning if the driver or torch cannot use them."""
    query = ["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=_NVIDIA_SECONDS, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return [Finding("gpu", "ok", "no NVIDIA GPU: the local backbone trains on the CPU")]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("gpu", "warning", f"nvidia-smi does not answer: {error}", "check the NVIDIA driver")]
    if result.returncode != 0:
        text = f"nvidia-smi fails: {(result.stdout or result.stderr).strip()[:200]}"
        return [Finding("gpu", "warning", text, "check the NVIDIA driver")]
    findings = [Finding("gpu", "ok", f"{line.strip()} free") for line in result.stdout.splitlines() if line.strip()]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return findings
    if findings and torch.endswith("+cpu"):
        text = f"torch {torch} supports CPUs only, so it cannot use the GPU"
        findings.append(Finding("gpu", "warning", text, "install torch for CUDA (`make setup` on this machine does)"))
    return findings


def _check_disk(folder: Path) -> Finding:
    """Return the free disk space for the runs, as a problem if a run cannot write there."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    text = f"{free / _GIB:.1f} GiB free for {folder}"
    if not os.access(existing, os.W_OK):
        return Finding("disk", "problem", f"ajet cannot write to {existing}", "choose another folder with --exp-dir")
    if free < NO_GIB * _GIB:
        return Finding("disk", "problem", text, "free disk space, or record in another folder (--exp-dir)")
    if free < LITTLE_GIB * _GIB:
        return Finding("disk", "warning", text, "checkpoints may not fit: lower trainer_common.max_checkpoints_to_keep")
    return Finding("disk", "ok", text)


_NOT_FOR_USERS = {"dev"}
_FOR_CPU = ("verl", "vllm")
"""Extras with a variant NAME-cpu for machines without an NVIDIA GPU."""


def check_packages(needed: Sequence[str] = ()) -> list[Finding]:
    """Compare the requirements of ajet and its extras with the installed packages, without importing the packages.

    Of a pair of extras for machines with and without a GPU, only the extra for this machine is checked.

    Args:
        needed: Extras of the experiment. A missing package of a needed extra is a problem.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = metadata.requires("ajet") or []
    except metadata.PackageNotFoundError:
        text = "ajet runs from a folder and is not installed, so its required versions are unknown"
        return [Finding("ajet", "warning", text, format_own_install())]
    requirements: dict[str, list[Requirement]] = {"": []}
    extras = metadata.metadata("ajet").get_all("Provides-Extra") or []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirements[""].append(requirement)
            continue
        for extra in extras:
            if requirement.marker.evaluate({"extra": extra}):
                requirements.setdefault(extra, []).append(requirement)
    base_finding = _check_requirements(requirements.pop(""))
    other_variants = {name if not has_nvidia() else f"{name}-cpu" for name in _FOR_CPU}
    listed_extras = sorted(set(extras) - _NOT_FOR_USERS - other_variants)
    return [
        base_finding,
        *(
            _check_extra(extra, requirements.get(extra, []), extra.removesuffix("-cpu") in needed)
            for extra in listed_extras
        ),
    ]


def _check_requirements(requirements: Sequence[Requirement]) -> Finding:
    """Return whether the requirements of ajet itself are met, with the versions of the main packages."""
    unmet, installed = check_requirements(requirements)
    version = metadata.version("ajet")
    if unmet:
        return Finding("ajet", "problem", f"version {version}, but {'; '.join(unmet)}", format_own_install())
    main_packages = {"torch", "transformers", "openai", "pydantic"}
    return Finding(
        "ajet",
        "ok",
        f"{version}; " + ", ".join(package for package in installed if package.split()[0] in main_packages),
    )


def _check_extra(extra: str, requirements: Sequence[Requirement], needed: bool) -> Finding:
    """Return whether the packages of an extra are installed.

    A missing one is a problem only if the experiment needs it.
    """
    unmet, installed = check_requirements(requirements)
    topic = f"[{extra}]"
    agentscope, mcp = find_installed_version("agentscope"), find_installed_version("mcp")
    if extra == "agentscope" and agentscope.startswith("1.") and int(mcp.partition(".")[0] or 0) >= 2:
        text = f"agentscope {agentscope} needs mcp 1, and mcp {mcp} is installed"
        return Finding(topic, "problem" if needed else "warning", text, format_install("mcp<2"))
    if python_bound := explain_python_bound(extra):
        return Finding(
            topic, "problem" if needed else "note", python_bound, "an environment with an older Python, for this extra"
        )
    if not unmet:
        return Finding(topic, "ok", ", ".join(installed))
    do = format_extra_install(extra)
    if needed:
        return Finding(topic, "problem", f"the experiment needs it, but {'; '.join(unmet)}", do)
    if extra == "vllm" and find_installed_version("verl"):
        text = f"{'; '.join(unmet)}: verl requires another version"
        return Finding(topic, "note", text, "create a separate environment for `rollout.engine: vllm` without verl")
    are_all_missing = all("not installed" in requirement for requirement in unmet)
    state: State = "note" if are_all_missing else "warning"
    return Finding(topic, state, "; ".join(unmet), do)


_RAY_ADDRESS_FILE = Path("/tmp/ray/ray_current_cluster")
_RAY_SECONDS = 0.5


def check_network(config: AjetConfig | None) -> list[Finding]:
    """Check ports, the gateway over the loopback interface, proxies and Ray.

    Args:
        config: Settings with the gateway's host and port. None: any port of this machine.
    """
    return [_check_port(config), _check_gateway(), *_check_proxies(), _check_ray()]


def _check_port(config: AjetConfig | None) -> Finding:
    """Return whether the gateway could listen on its host and port."""
    host = (config.gateway.host if config else None) or "127.0.0.1"
    port = config.gateway.port if config else 0
    try:
        with socket.create_server((host, port)) as listening:
            free_port = listening.getsockname()[1]
    except OSError as error:
        endpoint = f"{host}:{port}" if port else host
        do = "set another gateway.port, or 0: then the system chooses a free one" if port else "mend gateway.host"
        return Finding("ports", "problem", f"the gateway cannot listen on {endpoint}: {error}", do)
    return Finding(
        "ports",
        "ok",
        f"{host}:{port} is free" if port else f"the system chooses a free port on {host} (now {free_port})",
    )


def _check_gateway() -> Finding:
    """Start a gateway with a scripted model, send it one request, and return whether the reply arrives."""
    import httpx

    from ajet.engine.contract import Sampling
    from ajet.engine.scripted import ScriptedChat
    from ajet.gateway import Gateway

    try:
        gateway = Gateway(ScriptedChat(["pong"]), None, max_model_len=1000, max_response_tokens=10).start()
    except (UserError, OSError) as error:
        return Finding("gateway", "problem", f"the gateway does not start: {error}")
    try:
        session = gateway.open("doctor", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
        endpoint = session("doctor", "doctor", None)
        started = time.perf_counter()
        reply = httpx.post(
            f"{endpoint.base_url}/chat/completions",
            headers={"authorization": f"Bearer {endpoint.api_key}"},
            json={"model": "doctor", "messages": [{"role": "user", "content": "ping"}]},
            timeout=5,
            trust_env=False,
        )
        seconds = time.perf_counter() - started
        session.close()
    except httpx.HTTPError as error:
        do = "check whether a firewall blocks the loopback interface"
        return Finding("gateway", "problem", f"the gateway cannot be reached over the loopback interface: {error}", do)
    finally:
        gateway.close()
    if reply.status_code != 200 or reply.json()["choices"][0]["message"]["content"] != "pong":
        return Finding("gateway", "problem", f"the gateway answers with status {reply.status_code}: {reply.text[:200]}")
    return Finding("gateway", "ok", f"the gateway answers over the loopback interface in {seconds * 1000:.0f} ms")


def _check_proxies() -> list[Finding]:
    """Return a warning if a proxy cannot be used, or if clients would send the gateway's requests through one."""
    if unusable := explain_proxies():
        return [Finding("proxy", "warning", unusable)]
    if not {"http", "all"} & set(getproxies()) or proxy_bypass("127.0.0.1"):
        return []
    text = (
        "the environment sets an HTTP proxy for all hosts: clients in other processes would send calls to the "
        "gateway's loopback address through it"
    )
    return [Finding("proxy", "warning", text, "export NO_PROXY=127.0.0.1,localhost")]


def _check_ray() -> Finding:
    """Return whether Ray is installed and whether a Ray cluster answers.

    The address is RAY_ADDRESS, or else that of the cluster last started on this machine.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", "note", "not installed; only the verl and trinity backbones need it")
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        try:
            address = _RAY_ADDRESS_FILE.read_text().strip()
        except OSError:
            return Finding(
                "ray", "ok", f"version {version}; no Ray cluster runs on this machine, --with-ray starts one"
            )
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        endpoint = (parts.hostname or address, parts.port or 6379)
        with socket.create_connection(endpoint, timeout=_RAY_SECONDS):
            return Finding("ray", "ok", f"version {version}; a Ray cluster answers at {address}")
    except (OSError, ValueError) as error:
        if "RAY_ADDRESS" in os.environ:
            return Finding(
                "ray", "warning", f"version {version}; RAY_ADDRESS is {address}, where no server answers: {error}"
            )
        return Finding("ray", "ok", f"version {version}; the last Ray cluster has ended, --with-ray starts one")


def check_model(path: str, base: Path | None, config: AjetConfig | None) -> list[Finding]:
    """Check a model's chat template, stop tokens, vocabulary and context, without loading its weights.

    Args:
        path: The model, as in `model.path`.
        base: Folder of relative paths. None: the working directory.
        config: Settings of a run. None: the defaults.
    """
    from ajet.engine.dimensions import read_embedding_shapes
    from ajet.engine.model_source import describe_download, find_local_model, locate_model
    from ajet.engine.models import load_tokenizer, prepare_folder
    from ajet.rollout.components import make_renderer
    from ajet.tokens import Renderer
    from ajet.tokens.template_doctor import examine, sizes

    try:
        is_trusted = config is not None and config.model.trust_remote_code
        source = locate_model(path, base=base, weights=False, trust_remote_code=is_trusted)
        if source.gguf_file is not None and find_local_model(path, base=base, weights=False) is None:
            return [
                Finding(
                    "model", "note", f"{describe_download(path, base=base)}; a run downloads it, this check does not"
                )
            ]
        folder = prepare_folder(source, weights=False)
        tokenizer = load_tokenizer(source)
        renderer = make_renderer(config, tokenizer) if config is not None else Renderer(tokenizer)
    except UserError as error:
        return [Finding("model", "problem", error.what, error.do or error.expected)]
    config_json = _read_json(folder / "config.json")
    findings = [
        Finding("model", "ok", f"{path} ({', '.join(config_json.get('architectures') or ['unknown architecture'])})")
    ]
    findings += sizes(tokenizer, config_json, read_embedding_shapes(folder))
    findings += _check_context(config_json, config)
    findings += _check_other_ends(renderer, _read_json(folder / "generation_config.json"))
    return [*findings, *examine(renderer)]


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if it is missing or invalid."""
    try:
        config_json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config_json if isinstance(config_json, dict) else {}


def _check_context(config_json: dict[str, Any], config: AjetConfig | None) -> list[Finding]:
    """Return how many tokens the model was trained for, with a note if the settings ask for more.

    Args:
        config_json: The model's config.json.
    """
    longest = (config_json.get("text_config") or config_json).get("max_position_embeddings")
    if not isinstance(longest, int):
        return []
    requested = config.rollout.max_model_len if config else 0
    if requested > longest:
        text = (
            f"The model was trained for {longest} tokens, but rollout.max_model_len is {requested}: ajet will use "
            f"{longest}."
        )
        return [Finding("context", "note", text)]
    return [Finding("context", "ok", f"{longest} tokens")]


def _check_other_ends(renderer: Renderer, generation_json: dict[str, Any]) -> list[Finding]:
    """Return a note if the model's generation_config.json names end tokens at which ajet would not end a reply."""
    configured = generation_json.get("eos_token_id")
    end_tokens = configured if isinstance(configured, list) else [configured] if isinstance(configured, int) else []
    missing = [token for token in end_tokens if token not in renderer.end_ids]
    if not missing:
        return []
    text = f"generation_config.json also ends replies at {', '.join(renderer.decode([token]) for token in missing)}."
    return [
        Finding(
            "other ends", "note", text + " ajet ends replies at the end tokens of the chat template and the tokenizer."
        )
    ]
