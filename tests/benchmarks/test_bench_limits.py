"""What benchmarks judge and keep: the limits that are theirs, in exit codes and for `make bench --against`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ajet.engine.scripted import ScriptedEngine
from benchmarks.bounds import Pace

ROOT = Path(__file__).resolve().parents[2]


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark's module; what it puts in sys.path is taken out again."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """What was kept so far, by name."""
    file = tmp_path / "ratios.jsonl"
    monkeypatch.setenv("AJET_RATIOS", str(file))

    def read():
        told = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
        return {row["name"]: (row["value"], row["at_least"], row["at_most"]) for row in told}

    return read


def result(bench, streams: float, cpu: float, events: int = 64):
    return bench.Result(bench.Load([0.1, 0.1], wall=2 / streams, events=events), 2, cpu)


@pytest.mark.parametrize(
    ("pace", "rate", "cpu", "good"),
    [(0.0, 51, 0.0004, True), (0.0, 49, 0.0003, False), (0.0, 60, 0.0005, False), (0.02, 96, 0.001, True),
     (0.02, 94, 0.001, False)],
)  # fmt: skip
def test_the_gateway_is_held_to_half_and_to_nearly_all_of_the_bare_relay(
    rows, monkeypatch, capsys, pace, rate, cpu, good
):
    bench = loaded("bench_gateway", monkeypatch)
    found = {"ours": result(bench, rate, cpu, 8), "relay": result(bench, 100, 0.0003, 68),
             "gathering": result(bench, 200, 0.0002, 6)}  # fmt: skip
    assert bench.judge(found, 1000.0, 1000, pace) is good
    kept = {name.partition(",")[0]: row for name, row in rows().items()}
    assert kept["the relay's throughput"][1] == (0.95 if pace else 0.5)
    assert kept["the gathering relay's throughput"] == (pytest.approx(rate / 200), None, None)
    assert kept["ms of processor time a stream"][2] == (None if pace else 0.4)
    said = capsys.readouterr().out
    assert "ours 4.0, its 34.0" in said and "ours 4.0, its 3.0" in said and ("MISSED" in said) is not good


@pytest.mark.parametrize("name", ["ours", "relay", "gathering"])
def test_a_side_that_lost_streams_is_no_measure(rows, monkeypatch, capsys, name):
    bench = loaded("bench_gateway", monkeypatch)
    found = {each: result(bench, 100, 0.0003) for each in ("ours", "relay", "gathering")}
    assert bench.judge(found, 1000.0, 1, 0.0)
    found[name].load.failed = 1
    assert not bench.judge(found, 1000.0, 1, 0.0) and "MISSED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("bench_long", "--parts", "trian"),
        ("bench_verl", "--parts", "loop,lunch"),
        ("bench_trees", "--scenes", "gruop"),
        ("bench_trees", "--rounds", "1"),
        ("bench_long_verl", "--kinds", "lines"),
        ("bench_kernels", "--only", "nothing"),
        ("bench_merge", "--scenes", "lnked"),
        ("bench_store", "--kinds", "mongo"),
    ],
)
def test_what_a_benchmark_does_not_have_is_refused_and_no_limit_is_kept(rows, monkeypatch, capsys, words):
    name, *flags = words
    bench = loaded(name, monkeypatch)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2 and flags[0] in capsys.readouterr().err and rows() == {}


def test_a_store_that_is_not_there_keeps_no_limit(rows, monkeypatch, capsys):
    bench = loaded("bench_store", monkeypatch)
    monkeypatch.setattr(bench, "server_file", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bench_store.py", "--kinds", "mongodb"])
    assert bench.main() == 1 and rows() == {} and "nothing was measured" in capsys.readouterr().out


@pytest.mark.parametrize(("clients", "events"), [(0, 34), (8, 34), (1000, 3)])
def test_a_relay_that_gathers_writes_as_many_events_as_the_gateways_rule_makes(monkeypatch, clients, events):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from bare_relay import relay

    sent: list[bytes] = []

    async def receive():
        return {"type": "http.request", "body": b'{"model": "m"}'}

    async def send(message):
        sent.append(message.get("body", b""))

    words = {token: f"<{token}>" for token in range(32)}
    engine = ScriptedEngine(lambda request: list(range(32)), chunk=1)
    app = relay(engine, [1], words, tokens=32, gathers=clients)
    asyncio.run(app({"method": "POST"}, receive, send))
    told = [line for line in b"".join(sent).split(b"\n\n") if line]
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in told[:-1])
    assert text == "".join(words.values()) and len(told) == events


def launch(bench, first: float, rollout: float, step: float):
    after = {event: first for event, _ in bench.PHASES}
    return bench.Launch(
        after,
        {event: Counter(command=1.0) for event in after},
        [{"step": step}] * 4,
        [rollout] * 4,
        {"rollout": [Counter(command=1.0)] * 4, "step": [Counter(command=1.0)] * 4},
    )


@pytest.mark.parametrize(
    ("first", "rollout", "step", "good"),
    [(0.79, 1.04, 1.04, True), (0.81, 1.0, 1.0, False), (0.7, 1.06, 1.0, False), (0.7, 1.0, 1.06, False)],
)
def test_verls_launch_is_held_to_its_first_token_a_rollout_and_a_step(rows, monkeypatch, first, rollout, step, good):
    bench = loaded("bench_verl", monkeypatch)
    made = {"verl": [launch(bench, 1, 1, 1)] * 2, "ours": [launch(bench, first, rollout, step)] * 2}
    assert bench.shown(made) is good
    assert {name: limit for name, (_, _, limit) in rows().items()} == {
        "launch: processor time to the first token, against verl's": None,
        "launch: processor time from dispatch to its batch, against verl's": None,
        "launch: processor time from dispatch to the step's end, against verl's": None,
        "launch: command to first token, against verl's": 0.8,
        "launch: a step of the whole command, against verl's": 1.05,
        "launch: a rollout inside the whole command, against verl's": 1.05,
    }


def test_a_launch_of_each_is_thrown_away_and_each_is_as_often_first(monkeypatch):
    bench = loaded("bench_verl", monkeypatch)
    order = bench.turns(4)
    assert order[:2] == [(0, "verl"), (0, "ours")], "files are read from the disk by these"
    firsts = [side for number, side in order[2::2]]
    assert firsts.count("ours") == firsts.count("verl") == 2 and len(order) == 10
    monkeypatch.setattr(sys, "argv", ["bench_verl.py", "--launches", "3"])
    with pytest.raises(SystemExit):
        bench.main()


def test_ten_seeds_of_the_addition_task_are_judged_and_fewer_are_kept(rows, monkeypatch):
    bench = loaded("bench_addition", monkeypatch)

    def runs(*tests):
        return [bench.Run("a", [], seed, test=test) for seed, test in enumerate(tests)]

    name = "share of seeds at 0.85 of the test split"
    assert bench.good_at_last(runs(None, None)) and rows() == {}
    assert bench.good_at_last(runs(0.9, 0.5)) and rows()[name] == (0.5, None, None)
    assert bench.good_at_last(runs(*[0.85] * 9, 0.5)) and rows()[name] == (0.9, 0.9, None)
    assert not bench.good_at_last(runs(*[0.85] * 8, 0.8, 0.5))


def test_a_copy_is_read_once_and_written_once(monkeypatch):
    bench = loaded("bench_limit", monkeypatch)
    assert bench.copy_seconds(50, Pace(1.0, 10.0)) == 10.0


INFO = "vendor_id\t: {}\ncpu family\t: {}\ncpu MHz\t\t: {}\nflags\t\t: fma avx2 avx512f avx512_bf16{}\n"
XEON = INFO.format("GenuineIntel", 6, 2700.0, " amx_bf16")
EPYC = INFO.format("AuthenticAMD", 25, 2600.0, "")


@pytest.mark.parametrize(
    ("info", "dtype", "giga"),
    [
        (XEON, torch.bfloat16, 2 * 2.7 * 1024),
        (XEON, torch.float32, 2 * 2.7 * 64),
        (EPYC, torch.bfloat16, 2 * 2.6 * 64),
        (EPYC, torch.float32, 2 * 2.6 * 32),
        (EPYC.replace("avx512f avx512_bf16", ""), torch.bfloat16, 2 * 2.6 * 32),
    ],
)
def test_a_processors_peak_is_cores_times_clock_times_operations(monkeypatch, info, dtype, giga):
    peak = loaded("processor_peak", monkeypatch)
    found = peak.of_processor(info, dtype, 2)
    assert found.flops == pytest.approx(giga * 1e9) and "2 cores" in found.how
    assert peak.of_processor(info, dtype, 2, 4e9).flops > found.flops
    assert peak.of_processor("Features : asimd\n", dtype, 2) is None


def test_expected_shares_are_those_measured(monkeypatch):
    bench = loaded("bench_machine", monkeypatch)
    rows = [json.loads(line) for line in (ROOT / "benchmarks/results/measured.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row.get("what", "").startswith("rollout of 64; "))
    assert row["measured"].startswith(f"{bench.REACHED[0]}; {bench.REACHED[1]}; ") and "two threads" in row["what"]
    alone = next(row for row in rows if row.get("what", "").startswith("torch's own products alone"))
    assert alone["text"].startswith(f"{bench.ALONE[0]}; {bench.ALONE[1]} of the bound")


def test_links_of_measured_rows_name_files():
    """They are read from docs/, without anchors: pages change their headings."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "benchmarks/results/measured.jsonl").read_text())
    assert links and [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_expected_pace_is_a_share_of_torchs_products(monkeypatch, tmp_path, capsys):
    bench = loaded("bench_machine", monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "matmul_pace", lambda dtype, device: (1e15, 512))
    monkeypatch.setattr(bench, "triad_pace", lambda device: 1e12)
    monkeypatch.setattr(bench, "attention_pace", lambda of, dtype, device, **args: 1e12)
    monkeypatch.setattr(bench, "sampling_alone", lambda of, dtype, device, **args: 2.0)
    monkeypatch.setattr(bench, "update_alone", lambda of, dtype, device, **args: 4.0)
    assert bench.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sampled, trained = (found[f"{bench.USUAL}: {what}"] for what in ("sampling", "update"))
    assert f"about {64 * 64 / 2 * 0.17 / 0.37:,.0f} tokens a second to expect" in sampled
    assert f"about {4096 / 4 * 0.14 / 0.46:,.0f} tokens a second to expect" in trained
    assert found["Qwen3-4B"] and list(tmp_path.iterdir()) == []
