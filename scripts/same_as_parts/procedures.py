"""How a setting is run with one checkout, in a folder `place` that holds a copy of `project/`.

Each procedure runs commands (`python -m ajet ...`), which change least, and returns the folder of their results.
Raises RunError where a command does not end as it should.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from same_as_parts.checkout import PARTS, Checkout, RunError

AJET = ["-m", "ajet"]
CONF = ["--conf", "same.yaml"]
RUN = Path("launcher_record") / "same"
RECORDED = "recorded"
"""Folder next to `place` with the store that both versions train from."""
KEY = "same-as-" + "0123456789abcdef" * 2
WAIT_S = 600


def train(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Train to the end."""
    checkout.run([*AJET, *CONF, *overrides], place)
    return place / RUN


def train_sft(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Learn from given replies, and measure the loss of others."""
    validation = ["sft.val_files=rows.jsonl", "trainer_common.test_freq=1"]
    checkout.run([*AJET, "sft", *CONF, "--data", "rows.jsonl", *validation, *overrides], place)
    return place / RUN


def train_dpo(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Learn from pairs."""
    checkout.run([*AJET, "sft", *CONF, "--data", "pairs.jsonl", "--objective", "dpo", *overrides], place)
    return place / RUN


def train_killed(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Train until the agent kills the process in step 3, and then to the end."""
    command = [*AJET, *CONF, *overrides]
    checkout.run(command, place, expected=-signal.SIGKILL)
    checkout.run(command, place)
    return place / RUN


def train_from_store(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Train without samplers from the store that the first version recorded."""
    recorded = place.parent / RECORDED
    if not recorded.exists():
        record_store(checkout, place, overrides)
        shutil.copytree(place, recorded, symlinks=True)
    shutil.rmtree(place)
    shutil.copytree(recorded, place, symlinks=True)
    checkout.run([*AJET, *CONF, "--backbone", "local", "--from-store", "sqlite:store.db", *overrides], place)
    return place / RUN


def record_store(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> None:
    """Fill a store for 3 steps: the trainer announces its first weights and is killed, then a sampler plays on."""
    store = ["sqlite:store.db"]
    trainer = checkout.start([*AJET, *CONF, "--backbone", "local", "--from-store", *store, *overrides], place)
    sampler = checkout.start([*AJET, "sample", *CONF, "--store", *store, "--name", "one", *overrides], place)
    try:
        wait_until((place / "begun").exists, trainer, sampler)
        trainer.kill()
        trainer.communicate()
        (place / "released").touch()
        wait_until(lambda: len(list(place.glob("ended-*"))) == 3 * 2 * 4, sampler)
        time.sleep(2)  # for the sampler to close the last group: it looks every 0.25 s
        sampler.send_signal(signal.SIGINT)
        checkout.wait(sampler, expected=130)
    finally:
        for process in (trainer, sampler):
            process.kill()


def train_served(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Serve one client, which waits for each step before it goes on."""
    status = place / RUN / "status.json"
    server = checkout.start([*AJET, "serve", *CONF, "--backbone", "local", *overrides], place, AJET_ADMIN_KEY=KEY)
    try:
        wait_until(lambda: status.exists() and bool(json.loads(status.read_text()).get("url")), server)
        url = json.loads(status.read_text())["url"]
        checkout.run(["client.py", url, str(RUN)], place, AJET_ADMIN_KEY=KEY)
        checkout.wait(server)
    finally:
        server.kill()
    return place / RUN


def run_verl_credit(checkout: Checkout, place: Path, overrides: tuple[str, ...]) -> Path:
    """Run the version's own driver, since its tests' stand-ins may have moved."""
    driver = checkout.code / "scripts" / "same_as_parts" / "verl_credit.py"
    checkout.run([str(driver if driver.exists() else PARTS / "verl_credit.py"), str(place / "out")], place)
    return place / "out"


def wait_until(is_done: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    """Wait while all processes live. Raises RunError when one of them ends or time runs out."""
    until = time.monotonic() + WAIT_S
    while not is_done():
        for process in processes:
            if process.poll() is not None:
                printed, _ = process.communicate()
                raise RunError(f"exit code {process.returncode} too early:\n{printed[-3000:]}", process.returncode)
        if time.monotonic() > until:
            raise RunError(f"it took more than {WAIT_S} s")
        time.sleep(0.1)
