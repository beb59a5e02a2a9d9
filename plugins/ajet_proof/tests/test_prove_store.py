"""`ajet prove --store`, where a store's address is all there is: what it holds passes, what was changed is named."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.backbone.decoupled.terms import fingerprint_template
from ajet.cli import launcher
from ajet.config import load_recorded_experiment
from ajet.engine.models import fingerprint_tokenizer
from ajet.record import EpisodeFiles
from ajet.record.files import read_rows
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.store import Address, Kept, Policy, SharedStore, open_reader, open_shared, recorded_settings
from ajet_proof.recorded.prove import load_tokenizer_and_renderer
from ajet_proof.recorded.store import StoreReport, prove_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tool_project: Path) -> Path:
    return tool_project / "launcher_record" / "plain"


@pytest.fixture(params=["sqlite", "mongodb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/ledger.sqlite" if kind == "sqlite" else request.getfixturevalue("mongod").empty()


def id_of(run: Path) -> str:
    return str(json.loads((run / "run.json").read_text())["run_id"])


def fingerprints(run: Path) -> dict[str, str]:
    experiment = load_recorded_experiment(run / "resolved.yaml")
    tokenizer, _ = load_tokenizer_and_renderer(experiment)
    return {"tokenizer": fingerprint_tokenizer(tokenizer), "template": fingerprint_template(experiment.ajet, tokenizer)}


def filled(
    address: str,
    run: Path,
    *,
    weights: Path | str = "/gone",
    change: Callable[[Episode], Episode] = lambda episode: episode,
    **announced: str,
) -> SharedStore:
    """The store as samplers of this run would have left it: step 1 has used its groups, step 2 has not. `change`: what
    becomes of each episode before it is put."""
    trainer = open_shared(address, rolls=True, run=id_of(run), settings=recorded_settings(run))
    sampler = open_shared(address)
    played = {step: EpisodeFiles(run / "episodes").read(step, "train") for step in (1, 2)}
    count = len({episode.order for episodes in played.values() for episode in episodes})
    for lease in sampler.lease(count):
        group = [each for episodes in played.values() for each in episodes if each.order == lease.order]
        sampler.put(lease, *(Kept(change(each), ended_by="one") for each in group))
        sampler.close(lease)
    trainer.use({episode.order for episode in played[1]}, 1)
    trainer.commit()
    version = 1 if weights else 0
    policy = Policy(id_of(run), 1, str(weights), below=64, told={"version": version}, **announced)
    trainer.announce(policy)
    sampler.disconnect()
    return trainer


def content(address: str) -> Any:
    """All that the database holds, past ajet."""
    if address.startswith("sqlite:"):
        with closing(sqlite3.connect(address.removeprefix("sqlite:"))) as base:
            return list(base.iterdump())
    from pymongo import MongoClient

    with MongoClient(address) as client:
        base = client["ajet"]
        return {name: sorted(map(repr, base[name].find())) for name in sorted(base.list_collection_names())}


def damage(address: str, uuid: str) -> None:
    """One byte of its tokens."""
    if address.startswith("sqlite:"):
        with closing(sqlite3.connect(address.removeprefix("sqlite:"))) as base, base:
            (arrays,) = base.execute("SELECT arrays FROM ends WHERE uuid = ?", (uuid,)).fetchone()
            base.execute("UPDATE ends SET arrays = ? WHERE uuid = ?", (turned(arrays), uuid))
        return
    from pymongo import MongoClient

    with MongoClient(address) as client:
        (record,) = client["ajet"]["Record"].find({"traj_id": uuid})
        client["ajet"]["Record"].update_one({"_id": record["_id"]}, {"$set": {"arrays": turned(record["arrays"])}})


def turned(arrays: bytes) -> bytes:
    return arrays[:-1] + bytes([arrays[-1] ^ 1])


def test_a_store_is_proven_from_its_address_alone(address: str, run: Path) -> None:
    """By the weights that training began with; what only the run's folder can show is said, and nothing is changed."""
    filled(address, run, **fingerprints(run)).disconnect()
    before = content(address)
    found = prove_store(address)
    report = found.report
    assert found.ok, (report.wrong_steps, report.proof.wrong)
    assert content(address) == before
    rows = [row for row in read_rows(run / "metrics.jsonl") if "tasks" in row]
    assert report.proof.episodes == sum(row["train/episodes"] for row in rows) == 16
    sampled = report.proof.counts["sampled"]
    assert sampled.tokens == sampled.checked == sampled.equal == sum(row["train/sampled_tokens"] for row in rows)
    assert dict(found.positions) == {"over": 2, "closed": 2} and found.gone == 0 and found.run == id_of(run)
    of_first, of_second = ({play.step: play for play in report.plays}[step] for step in (1, 2))
    assert of_first.recomputed == sum(of_first.sampled.values()) > 0, "by the model that training began with"
    assert set(of_second.sampled) == {1} and report.unproven == {"no checkpoint": of_second.sampled[1]}
    uuid = EpisodeFiles(run / "episodes").read(2, "train")[0].uuid
    only = prove_store(address, episode=uuid[:8], ids_only=True).report
    assert only.ok and only.proof.episodes == 1 and "--ids-only" in only.why_not
    used = prove_store(address, steps=[1], ids_only=True)
    assert used.ok and dict(used.positions) == {"over": 2}
    with pytest.raises(UserError, match="no episode that step 2 used"):
        prove_store(address, steps=[2])


def test_the_announced_weights_are_used_where_they_are_here(run: Path, tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path}/ledger.sqlite"
    filled(address, run, weights=run / "checkpoints" / "step-1").disconnect()
    report = prove_store(address).report
    assert report.ok and not report.unproven and set(report.weights) == {0, 1}


def named(found: StoreReport) -> str:
    return "\n".join(map(str, [*found.report.wrong_steps, *found.report.proof.wrong]))


def test_what_was_changed_is_named(address: str, run: Path) -> None:
    filled(address, run).disconnect()
    (uuid,) = (each.uuid for each in EpisodeFiles(run / "episodes").read(2, "train")[:1])
    damage(address, uuid)
    before = content(address)
    found = prove_store(address, ids_only=True)
    assert not found.ok and content(address) == before, "it is not even set aside: nothing is changed by looking"
    assert f"changed in the store: episode {uuid} of position" in named(found) and found.report.proof.episodes == 15


def test_a_wrong_token_with_a_matching_digest_is_named(address: str, run: Path) -> None:
    """Of whoever can put, or make a digest that matches: another reply, a version of later, another run's episode."""
    victim = EpisodeFiles(run / "episodes").read(1, "train")[0]

    def one(**fields: Any) -> Callable[[Episode], Episode]:
        return lambda each: replace(each, **fields) if each.uuid == victim.uuid else each

    first = victim.calls[0]
    ids = first.response_ids.copy()
    ids[0] = (ids[0] + 1) % 100
    later = tuple(each._replace(low=1, high=1) for each in first.versions)
    for change, said in (
        (one(calls=[replace(first, response_ids=ids), *victim.calls[1:]]), victim.uuid),
        (one(calls=[replace(first, versions=later), *victim.calls[1:]]), victim.uuid),
        (one(run="other"), f"episode {victim.uuid} belongs to another run"),
        (one(repeat=7), "has the attempts"),
    ):
        if address.startswith("sqlite:"):
            Path(address.removeprefix("sqlite:")).unlink(missing_ok=True)
        else:
            import pymongo

            base = pymongo.MongoClient(address)["ajet"]
            for name in base.list_collection_names():
                base[name].delete_many({})
        filled(address, run, change=change).disconnect()
        found = prove_store(address, ids_only=True)
        assert not found.ok and said in named(found), (said, named(found))


def test_what_cannot_be_proven_is_one_screen(
    address: str,
    kind: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            launcher.main(["prove", *arguments])
        shown = capfd.readouterr()
        assert "Traceback" not in shown.err
        return int(ended.value.code or 0), " ".join((shown.out + shown.err).split())

    def refused(*arguments: str) -> str:
        code, shown = said(*arguments)
        assert code == 2, shown
        return shown

    assert "run or episode to prove is missing" in refused()
    assert "--run needs --store" in refused("--run", "plain")
    unknown = f"sqlite:{tmp_path}/none.sqlite" if kind == "sqlite" else address
    assert "There is no ajet store" in refused("--store", unknown)
    if kind == "sqlite":
        assert not (tmp_path / "none.sqlite").exists()
        (tmp_path / "text").write_text("no database " * 100)
        assert "cannot be read" in refused("--store", f"sqlite:{tmp_path}/text")
    else:
        assert content(address).get("ajet_ledger", []) == [], "looking made none"
    open_shared(address, rolls=True, run="r").disconnect()
    assert "has no settings of its run" in refused("--store", address)
    store = open_shared(address, rolls=True, run="r", settings=recorded_settings(run))
    assert "contains no episode" in refused("--store", address)
    assert "another run than other" in refused("--store", address, "--run", "other")
    (lease,) = store.lease(1)
    store.put(lease, Kept(EpisodeFiles(run / "episodes").read(1, "train")[0]))
    assert "abc cannot be the beginning of an episode's id" in refused("abc", "--store", address)
    assert "begins with abcdef" in refused("abcdef", "--store", address)
    store.announce(Policy("r", 0, "", below=8, told={"version": 0}, tokenizer="other", template="other"))
    assert "differs from the run's: tokenizer and chat template" in refused(
        "--store", address, "--run", "plain", "--ids-only"
    )
    store.announce(Policy("r", 0, "", below=8, told={"version": 0}))
    code, shown = said("--store", address, "--ids-only")
    assert code == 1 and "belongs to another run" in shown and "1 position with episodes (1 leased)" in shown
    assert "from a store: log-prob" in shown, "what is asked for elsewhere is named"
    code, shown = said("--store", address, "--ids-only", "--json")
    assert code == 1 and '"positions": { "leased": 1 }' in shown and '"wrong_steps"' in shown


def test_a_look_at_a_store_ends_no_lease_and_reads_what_nobody_trained_on(address: str, run: Path) -> None:
    """Read past its time, a lease is still somebody's; a position that has nothing is not among those that are read."""
    store = open_shared(address, rolls=True, run=id_of(run), lease_seconds=0.0)
    sampler = open_shared(address, lease_seconds=-1.0)
    first, _ = sampler.lease(2)
    (whole,) = EpisodeFiles(run / "episodes").read(1, "train")[:1]
    sampler.put(first, Kept(whole))
    reading = open_reader(Address.of(address))
    before = content(address)
    assert reading.orders() == [first.order] and reading.begun() == 2 and reading.announced() is None
    found = reading.position(first.order)
    assert found is not None and found.state == "leased" and found.attempts[0].episode.uuid == whole.uuid
    assert np.array_equal(found.attempts[0].episode.calls[0].response_ids, whole.calls[0].response_ids)
    assert reading.position(1) is None and content(address) == before
    reading.close()
    store.disconnect()
