"""Make the upgrade fixtures of a version: `python tests/upgrade/make.py CODE --name NAME [--only local ...]`.

Invariant: the runs are that version's own, made by its command line; this file only starts, kills and packs them. CODE
is a checkout of it (`git worktree add --detach /srv/ajet-upgrade/code COMMIT`). Runs record where they were made, in
`run.json`, `resolved.yaml` and elsewhere, so they are made in one neutral folder (`PLACE`); nothing that is packed may
name another folder of the machine, and the script refuses to pack what does. To be run where PLACE can be written:

    ln -s THE_VENV /srv/ajet-upgrade/venv
    python tests/upgrade/make.py /srv/ajet-upgrade/code --name 4e1e13d

Each run is one `NAME/RUN.tar.xz` with its folder; `project.tar.xz` holds what it was started with (YAMLs, agent,
model), `yamls.tar.xz` the tutorials and templates of that version. The agent and the YAMLs are those in `project/` at
that time: a later version changes them freely, archives of earlier ones stay. The model knows nothing and is small,
so that checkpoints are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
PLACE = Path("/srv/ajet-upgrade")
PROJECT = PLACE / "project"
RECORD = PROJECT / "launcher_record"
KEY = "the-admin-key"
LEFT_OUT = (".lock", "__pycache__", "launcher_record", "exports", "*.partial")
"""What a run folder is complete without."""
ELSEWHERE = re.compile(rb"/(?:work|root|home|tmp|usr|opt|mnt)/[\w.-]+")


def make_model(code: Path) -> None:
    """A Qwen3 with the words of `embedded:tiny-tools` and 25 thousand random weights."""
    shipped = code / "ajet" / "engine" / "embedded" / "tiny_tools"
    source = f"""
import shutil, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(0)
config = Qwen3Config.from_pretrained({str(shipped)!r})
config.update(dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, layer_types=["full_attention"],
                   num_attention_heads=2, num_key_value_heads=1, head_dim=32, initializer_range=0.2))
Qwen3ForCausalLM(config).to(torch.float32).save_pretrained("model")
for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
    shutil.copy({str(shipped)!r} + "/" + name, "model/" + name)
"""
    subprocess.run([python(), "-c", source], cwd=PROJECT, env=surroundings(code), check=True)


def python() -> str:
    return str(PLACE / "venv" / "bin" / "python")


def surroundings(code: Path, **more: str) -> dict[str, str]:
    """The environment of a run: that version's code, one thread, no hub."""
    own = {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"}
    return {**os.environ, **own, **more}


def start(code: Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    """`ajet ARGUMENTS` in the project, what it prints beside it."""
    with (PLACE / "printed.txt").open("ab") as out:
        command = [python(), "-m", "ajet.cli.launcher", *arguments]
        told: dict[str, Any] = {"stdout": out, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, cwd=PROJECT, env=surroundings(code, **more), start_new_session=True, **told)


def until(condition: Callable[[], Any], process: subprocess.Popen[bytes], seconds: float) -> Any:
    """What it answers once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None and time.monotonic() < end, (PLACE / "printed.txt").read_text()[-4000:]
        time.sleep(0.02)
    return found


def steps(run: Path) -> list[int]:
    """Those with a row of metrics."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row["step"] for row in rows if "tasks" in row]


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def local(code: Path) -> Path:
    """Killed in the middle of step 4."""
    run = RECORD / "local"
    process = start(code, "--conf", "local.yaml", UPGRADE_PAUSE_S="0.4")
    until(lambda: 3 in steps(run), process, 120)
    time.sleep(0.3)  # into the episodes of step 4, which rest longer
    kill(process)
    assert steps(run) == [1, 2, 3]
    return run


def debug(code: Path) -> Path:
    """Ended."""
    process = start(code, "--conf", "debug.yaml")
    assert process.wait(timeout=120) == 0, (PLACE / "printed.txt").read_text()[-4000:]
    (run,) = (RECORD / "debug" / "debug").iterdir()
    return run


def asked(url: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """The answer to one request."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(0.05)


def play(root: str, task: str, reward: float) -> None:
    """One episode of a client's, acknowledged."""
    opened = asked(f"{root}/episodes", {"task": task}, KEY)
    body = {"model": "ajet", "messages": [{"role": "user", "content": task}]}
    asked(f"{opened['base_url']}/chat/completions", body, opened["api_key"])
    ended = asked(f"{root}/episodes/{opened['episode']}/finish", {"reward": reward}, KEY)
    assert ended["status"] == "completed", ended


def served(code: Path) -> Path:
    """Killed with task c's group complete and task d's half."""
    run = RECORD / "served"
    process = start(code, "serve", "--conf", "served.yaml", AJET_ADMIN_KEY=KEY)

    def address() -> str | None:
        path = run / "status.json"
        return json.loads(path.read_text()).get("url") if path.exists() else None

    root = until(address, process, 120)
    for task, reward in (("a", 0.0), ("a", 1.0), ("b", 0.25), ("b", 0.75)):
        play(root, f"What does {task} cost?", reward)
    until(lambda: (run / "checkpoints" / "step-1").exists() and not list((run / "pending").iterdir()), process, 60)
    for task, reward in (("c", 0.0), ("c", 1.0), ("d", 0.5)):
        play(root, f"What does {task} cost?", reward)
    kill(process)
    return run


def verl(code: Path) -> Path:
    """Killed after step 3: a Ray cluster of its own and vLLM on the processor, some minutes."""
    run = RECORD / "verl"
    busy = {"RAY_memory_monitor_refresh_ms": "0"}  # Ray ends workers of its own where others fill the memory
    process = start(code, "--conf", "verl.yaml", "--with-ray", **busy)
    try:
        until(lambda: 3 in steps(run), process, 1500)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        recorded = json.loads((run / "status.json").read_text())["processes"]
    finally:
        if process.poll() is None:
            kill(process)
    for one in family:
        if one.is_running():
            one.kill()
    for entry in recorded:
        if psutil.pid_exists(entry["pid"]) and abs(psutil.Process(entry["pid"]).create_time() - entry["started"]) < 1:
            psutil.Process(entry["pid"]).kill()
    state = json.loads((run / "checkpoints" / "step-2" / "state.json").read_text())
    assert state["state"]["waiting"], "no group waits in the checkpoint"
    return run


RUNS: dict[str, Callable[[Path], Path]] = {"local": local, "debug": debug, "served": served, "verl": verl}


def neutral(run: Path) -> None:
    """The machine's name goes; logs of Ray's processes, which nothing reads again, go. Raises ValueError for a path."""
    for path in run.glob("logs/*"):
        if not re.fullmatch(r"ajet.log|.*_(trainer|serve|debug)_0.log", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    named = f'"host": {json.dumps(platform.node())}'.encode()
    for path in (path for path in run.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if named in content:
            content = content.replace(named, b'"host": "a-machine"')
            path.write_bytes(content)
        if found := ELSEWHERE.search(content):
            raise ValueError(f"{path} names {found.group().decode(errors='replace')}")


def pack(target: Path, files: dict[Path, str]) -> None:
    """An archive of these files and folders by the names they get, owned by nobody."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if any(Path(entry.name).match(pattern) for pattern in LEFT_OUT) else entry

    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path, name in files.items():
            archive.add(path, arcname=name, filter=plain)
    print(f"{target.relative_to(HERE)}: {target.stat().st_size / 1024:.0f} KiB")


def make_project(code: Path, target: Path) -> None:
    """The folder that the runs are started in, and what that version ships for people to begin with."""
    shutil.copytree(HERE / "project", PROJECT)
    make_model(code)
    pack(target / "project.tar.xz", {PROJECT: "project"})
    shipped = {"tutorial": code / "tutorial", "templates": code / "ajet" / "cli" / "templates"}
    files = {
        path: str(Path(name) / path.relative_to(folder))
        for name, folder in shipped.items()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".yaml", ".py", ".txt")
    }
    pack(target / "yamls.tar.xz", files)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the upgrade fixtures of a version.")
    parser.add_argument("code", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    given = parser.parse_args()
    target = HERE / given.name
    target.mkdir(exist_ok=True)
    if not PROJECT.exists():
        make_project(given.code, target)
    for name in given.only:
        run = RUNS[name](given.code)
        neutral(run)
        pack(target / f"{name}.tar.xz", {run: str(run.relative_to(PLACE))})


if __name__ == "__main__":
    main()
