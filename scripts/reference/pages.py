"""The text of the generated pages: command line, packages, algorithms, verl's keys, and the viewer's words on metrics.

Invariant: a table says what its source says: the packages' docstrings, the descriptors, the layers of verl, the typer
commands, the definitions of metrics. What stands around a generated table is read from the page and stays.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from ajet.record.metric_definitions import GROUPS, list_metric_definitions
from ajet_harness.presets import list_harnesses, read_preset
from scripts.docs_site import LIST, resolve_link
from scripts.environments import ENVIRONMENTS, MOST_MEGABYTES
from scripts.fresh_installs import INSTALLED, RESOLVED

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
VERLS_DEFAULTS = "<!-- Defaults: generated from plugins/ajet_verl/verls.py by `make docs`. -->"
VERLS_KEYS = "<!-- verl's keys: generated from plugins/ajet_verl/layers by `make docs`. -->"
WORDS = "plugins/ajet_viewer/page/definitions.js"
INSTALLS = "<!-- Generated from benchmarks/results/installs.jsonl by `make docs`. -->"
HARNESSES = "<!-- Generated from plugins/ajet_harness/presets by `make docs`. -->"
STUDY = "<!-- Generated from benchmarks/results/study_*.json by `make docs`. -->"
MEASURED = "<!-- Generated from benchmarks/results/measured.jsonl by `make docs`. -->"


def packages_md() -> str:
    """Return the page of packages in import order: the first line of each docstring, then the plug-ins."""
    from ajet.config.plugins import list_plugins

    layers = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert layers is not None
    listed = re.findall(r'"ajet\.(\w+)"', layers[1])
    rows = [f"| `ajet/{package}` | {_purpose(package)} |" for package in listed if (ROOT / "ajet" / package).is_dir()]
    rows += [
        f"| `plugins/{each.plugin.name}` | {each.plugin.about[0].upper()}{each.plugin.about[1:]}. |"
        for each in list_plugins()
        if each.plugin is not None and (ROOT / "plugins" / each.plugin.name).is_dir()
    ]
    return "\n".join([_PACKAGES, "| Folder | What it is for |", "|---|---|", *rows]) + "\n"


_PACKAGES = """\
# Packages

<!-- Generated from the docstrings of the packages by `make docs`; change them there. -->

Each package imports only those below it in this list. [How it fits together](../architecture.md) describes a step.
`train/` and `env/`, next to `ajet/`, have the names that users of [AWorld](../aworld.md) import and only re-export.
`deploy/` has files that start a model server.
"""


def algorithms_md() -> str:
    """Return the page with the advantages and losses that come with ajet."""
    from ajet.config.plugin import load_code
    from ajet.config.plugins import find_parts

    algorithms = {name: load_code(part.code) for name, part in find_parts("algorithm").items()}
    lines = [_ALGORITHMS, "| Value | Advantage of episode i | Compared with | Paper |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {_cell(each.formula)} | {_compared(each.needs)} | {each.paper} |"
        for name, each in algorithms.items()
    ]
    losses = {name: load_code(part.code) for name, part in find_parts("loss").items()}
    lines += ["", _LOSSES, "| Value | Loss of a token | Paper |", "|---|---|---|"]
    lines += [f"| `{name}` | {_cell(each.formula)} | {each.paper} |" for name, each in losses.items()]
    return "\n".join(lines) + "\n"


_ALGORITHMS = """\
# Formulas of the algorithms

<!-- Generated from the algorithms by `make docs`; change the formulas in ajet/algorithm. -->

[Algorithms](../algorithms.md) explains the keys.

## Advantages

r₁ … r_k are the rewards of a group's scored episodes.
"""
_LOSSES = """\
## Losses

ρ is the importance ratio of the token, A its advantage; sg( ) stops the gradient.
"""


def verl_keys_md() -> str:
    """The page with its tables: verl's defaults that ajet replaces, and each key of verl's that a layer fills from one
    of ours, or that has a like."""
    from ajet.config import Experiment
    from ajet.config.keys import list_counterparts
    from ajet_verl.config.defaults import list_replaced_defaults, spell_value
    from ajet_verl.descriptor import VERL
    from ajet_verl.verls import HERE, LIKE, ROWS, UNREAD

    filled = {".".join(map(str, path)): near for path, near in list_counterparts(VERL.filled).items()}
    cells = {
        verl: f"{'same' if near.same else 'other'} | `{near.key.removeprefix('ajet.')}`"
        for verl, near in filled.items()
        if "ajet_" not in verl
    }
    cells |= {verl: f"other | `{ours}`" for verl, ours in LIKE.items()}
    cells |= {verl: f"other | {_cell(ours)}" for verl, ours in HERE.items()}
    cells |= {verl: f"not read | {_cell(ours)}" for verl, ours in (UNREAD | ROWS).items()}
    order = sorted(cells, key=lambda verl: (VERL.sections.index(verl.split(".")[0]), verl))
    rows = [f"| `{verl}` | {cells[verl]} |" for verl in order]
    page = (ROOT / "docs" / "reference" / "verl_keys.md").read_text(encoding="utf-8")
    page = _with_table(page, VERLS_KEYS, ["| verl | | below `ajet:` |", "|---|---|---|", *rows])
    plain = Experiment.from_dict({"ajet": {"backbone": "verl", "model": {"path": "MODEL"}}}, base=ROOT)
    defaults = [
        f"| `{each.key}` | {spell_value(each.verl)} | {spell_value(each.ajet)} | {_code(each.ours)} |"
        for each in list_replaced_defaults(plain)
    ]
    head = ["| key | verl | here | below `ajet:` |", "|---|---|---|---|"]
    return _with_table(page, VERLS_DEFAULTS, [*head, *defaults])


def performance_md() -> str:
    """Return the page with its table: the measured rows that have `shown`."""
    lines = (ROOT / "benchmarks" / "results" / "measured.jsonl").read_text(encoding="utf-8").splitlines()
    table = ["| What | Against | Goal | Measured | Met | Script |", "|---|---|---|---|---|---|"]
    for row in map(json.loads, lines):
        if shown := row.get("shown"):
            met = {True: "yes", False: "**no**", None: ""}[row["met"]]
            script = f"[`{shown['script']}`](../benchmarks/bench_{shown['script']}.py)"
            cells = (shown["what"], shown["against"], shown["goal"], shown["measured"], met, script)
            table.append(f"| {' | '.join(cells)} |")
    return _with_table((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), MEASURED, table)


def choosing_md() -> str:
    """Return the page with its table: held-out success of each algorithm on the tasks of the study."""
    studies = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("study_*.json"))]
    names = [group["label"] for group in studies[0]["groups"]]
    table = [f"| Task | Before | {' | '.join(map(_code, names))} |", f"|---|---|{'---|' * len(names)}"]
    for study in studies:
        with (RESULTS / f"study_{study['task']}.csv").open(encoding="utf-8", newline="") as file:
            first = [float(row["held_out_success"]) for row in csv.DictReader(file) if row["step"] == "0"]
        different = {each["after"] for each in study["differences"] if each["real"]}
        cells = [
            f"{group['held_out']:.2f} ± {group['error']:.2f}{' (holds)' if group['label'] in different else ''}"
            for group in study["groups"]
        ]
        table.append(f"| {study['kind']} | {sum(first) / len(first):.2f} | {' | '.join(cells)} |")
    return _with_table((ROOT / "docs" / "choosing_an_algorithm.md").read_text(encoding="utf-8"), STUDY, table)


def harnesses_md() -> str:
    """Return the page with its table: the presets of coding agents."""
    table = ["| Harness | Packages | Python | License |", "|---|---|---|---|"]
    for name in list_harnesses():
        preset = read_preset(name)
        packages = ", ".join(f"`{each}`" for each in (*preset.npm, *preset.requirements))
        python = "" if preset.npm else ", ".join(preset.python) or "any"
        table.append(f"| `{name}` | {packages} | {python} | {preset.license} |")
    return _with_table((ROOT / "docs" / "harnesses.md").read_text(encoding="utf-8"), HARNESSES, table)


def install_md() -> str:
    """Return the page with its table: what the base and each extra cost, and the Pythons that they were tried on."""
    lines = (ROOT / "benchmarks" / "results" / "installs.jsonl").read_text(encoding="utf-8").splitlines()
    by_extra: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        by_extra.setdefault(row["extra"], []).append(row)
    table = ["| Extra | MB | Packages | Processor seconds | Installed on | Resolved on |", "|---|---|---|---|---|---|"]
    for extra in filter(by_extra.get, (*INSTALLED, *RESOLVED)):
        rows = by_extra[extra]
        tried = [row for row in rows if row["how"] != "resolved"]
        costs = (
            [str(tried[0][key]) for key in ("megabytes", "packages", "processor_seconds")] if tried else ["", "", ""]
        )
        installed = _format_range([row["python"] for row in tried])
        resolved = _format_range([row["python"] for row in rows if row["how"] == "resolved" and row["packages"]])
        name = " + ".join(f"`{each}`" for each in extra.split(",")) if extra else "none"
        table.append(f"| {' | '.join([name, *costs, installed, resolved])} |")
    return _with_table((ROOT / "docs" / "install.md").read_text(encoding="utf-8"), INSTALLS, table)


def _format_range(versions: list[str]) -> str:
    return "–".join(dict.fromkeys([versions[0], versions[-1]])) if versions else ""


def versions_md() -> str:
    """Return the page of the versions that were run: component, version, environment, test, date and commit."""
    lines = (ROOT / "benchmarks" / "results" / "versions.jsonl").read_text(encoding="utf-8").splitlines()
    table = [_VERSIONS, "| Component | Version | Environment | Test | Last run | Commit |", "|---|---|---|---|---|---|"]
    for row in map(json.loads, lines):
        test = f"[`{row['test'].rpartition('/')[2]}`](../../{row['test']})"
        cells = (row["component"], row["version"], row["environment"], test, row["date"], f"`{row['commit']}`")
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


_VERSIONS = """\
# Tested versions

<!-- Generated from benchmarks/results/versions.jsonl by `make docs`; change it there. -->

Each version was run by its test, in [one of the environments](test_environments.md), when the code was at the commit.
"""


def test_environments_md() -> str:
    """Return the page of the tests' environments."""
    lines = [
        _TEST_ENVIRONMENTS,
        "| Environment | Packages | Tests | MB | Made by | Where |",
        "|---|---|---|---|---|---|",
    ]
    for each in ENVIRONMENTS:
        packages = ", ".join(f"`{package}`" for package in each.packages)
        python = f"Python {each.python}: " if each.python else ""
        place = {"cache": "cache", "": "temporary folder", ".venv": "`.venv`"}.get(each.place, f"`.venv/{each.place}`")
        cells = (each.name, python + packages, each.tests, str(each.megabytes), each.maker, place)
        lines.append(f"| {' | '.join(cells)} |")
    total = sum(each.megabytes for each in ENVIRONMENTS)
    return "\n".join([*lines, f"| all | | | {total} | | |"]) + "\n"


_TEST_ENVIRONMENTS = f"""\
# Environments of the tests

<!-- Generated from scripts/environments.py by `make docs`; change it there. -->

An environment in the cache is made once; another list of packages is another entry. The tests of one in a temporary
folder install the package there and remove it. All together may have {MOST_MEGABYTES:,} MB.
"""


def _code(key: str) -> str:
    return f"`{key.removeprefix('ajet.')}`" if key else ""


def _compared(needs: Collection[str]) -> str:
    others = {
        "critic": "what the value head expected",
        "teacher": "a teacher model",
        "distribution": "a teacher model",
        "privileged": "the policy with the answer",
    }
    if chosen := [words for need, words in others.items() if need in needs]:
        return chosen[0]
    return "the other attempts at its task" if "group" in needs else "all episodes of the batch"


def metrics_md() -> str:
    """Return the page of metrics: every name, its unit and its meaning."""
    lines = [_METRICS]
    for group in GROUPS:
        lines += ["", f"## {group.title}", ""] + ([group.about, ""] if group.about else [])
        if group.metrics:
            lines += ["| Name | Unit | What |", "|---|---|---|"]
        for metric in group.metrics:
            names = ", ".join(f"`{name}`" for name in metric.names)
            lines.append(f"| {names} | {metric.unit} | {_cell(metric.about)} |")
        lines += ["", group.notes] if group.notes else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


_METRICS = """\
# Metrics

<!-- Generated from ajet/record/metric_definitions.py by `make docs`; change it there. -->

A row of `metrics.jsonl` is a training step or a validation: `step`, `time` (seconds since 1970), and the numbers below.
A number that is not finite is null. A name without a value is missing: no `train/failed/engine` if no engine failed.
[Trackers](../trackers.md) get the same numbers. Rows of training steps also have lists of positions in the training
order:

| List | Positions |
|---|---|
| `tasks` | trained on by the step |
| `again` | of those, trained on [by an earlier step too](../off_policy.md#train-on-a-group-more-than-once) |
| `discarded` | played and not used (oversampling, too old) |
| `waiting` | played ahead of their step, or left unfinished and played again |
| `given_up` | failed too often at [samplers](../samplers.md), with the reasons |
"""


def llms_txt() -> str:
    """Return the list of pages for language models: that of the documentation, with the tutorials' own list."""
    _, first, parts = (ROOT / LIST).read_text(encoding="utf-8").partition("## ")
    lines = [_LLMS]
    for line in (first + parts).splitlines():
        lines.append(_from_root(line, LIST))
        if (own_list := "tutorial/README.md") in lines[-1]:
            listed = (ROOT / own_list).read_text(encoding="utf-8").splitlines()
            lines += [_from_root(each, own_list) for each in listed if each.startswith("- ")]
    return "\n".join(lines) + "\n"


_LLMS = """\
# ajet

> Tunes the model inside an LLM agent that already works, by reinforcement learning: one YAML, one command,
> on a CPU, one GPU, or a Ray cluster through verl.

- [README](README.md): two commands, the agent, the YAML, what works and what is not here yet
"""


def _from_root(line: str, page: str) -> str:
    """Return a line of a page with links as from the root of the repository."""
    return re.sub(r"\]\(([^)#:]+)", lambda link: f"]({resolve_link(page, link[1])}", line)


def definitions_js() -> str:
    """Return the viewer's definitions of metrics: [pattern, unit, words], plain names first."""
    rows = [(name, metric.unit, _plain(metric.about)) for metric in list_metric_definitions() for name in metric.names]
    rows.sort(key=lambda row: bool(_ANY.search(row[0])))
    words = ",\n".join(json.dumps([_pattern(name), unit, what], ensure_ascii=False) for name, unit, what in rows)
    return (
        "// What each metric is. Generated from ajet/record/metric_definitions.py by `make docs`; change it there.\n\n"
        f"const DEFINITIONS = [\n{words},\n].map(([pattern, ...told]) => [new RegExp(`^${{pattern}}$`), ...told]);\n\n"
        "export function definition(metric) {\n"
        "  const found = DEFINITIONS.find(([pattern]) => pattern.test(metric));\n"
        '  return found ? `${metric}: ${found[2]}${found[1] && found[1] !== "–" ? ` (${found[1]})` : ""}` : "";\n'
        "}\n"
    )


_ANY = re.compile(r"\b[A-Z]+\b")


def _pattern(name: str) -> str:
    """A documented name as a pattern: words in capitals stand for anything, a split for every split."""
    text = _ANY.sub(".+", re.sub(r"([.+])", r"\\\1", name))
    return re.sub(r"^(train|validation|debug)/", "(?:train|validation|debug)/", text)


def _plain(cell: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip()


def _with_table(page: str, mark: str, table: list[str]) -> str:
    """The page with `table` in place of the one that follows `mark`."""
    before, rest = page.split(mark, 1)
    return "\n".join([before + mark, "", *table, "", rest.split("\n\n", 2)[2]])


def _purpose(package: str) -> str:
    docstring = ast.get_docstring(ast.parse((ROOT / "ajet" / package / "__init__.py").read_text(encoding="utf-8")))
    return _cell((docstring or "").splitlines()[0])


def cli_md() -> str:
    """Every command with its arguments and options, read from the command line itself."""
    from ajet.cli.launcher import app

    group: Any = typer.main.get_command(app)
    lines = [
        "# The command line",
        "",
        "<!-- Generated from ajet/cli by `make docs`; change the help texts there. -->",
        "",
        "`python -m ajet`, `-m ajet.launcher` and `-m ajet.cli.launcher` are the same as `ajet`. A first argument that",
        "begins with `-` launches a run, and `ajet x.yaml` is `ajet --conf x.yaml`;",
        "`key=value` arguments use Hydra's grammar, with or without the leading `ajet.`.",
        "",
        "[Errors](errors.md) lists the exit codes.",
        "",
        *_command("ajet", group.commands["launch"], "Launch a run."),
    ]
    for name, command in group.commands.items():
        if name == "launch":
            continue
        for path, each in _flat(f"ajet {name}", command):
            lines += _command(path, each, each.help or "")
    shared = ["--version", "--install-completion", "--show-completion"]
    lines += ["## Everywhere", "", f"`ajet` also takes {', '.join(f'`{name}`' for name in shared)}."]
    lines += ["Every command takes `--help` and `--traceback`.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _flat(path: str, command: Any) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        return [(path, command)]
    return [pair for name, each in inner.items() for pair in _flat(f"{path} {name}", each)]


def _command(path: str, command: Any, summary: str) -> list[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and "--help" not in param.opts]
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *(_in_usage(param) for param in arguments)])
    lines = [f"## `{path}`", "", summary.strip().splitlines()[0], "", "```text", usage, "```", ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_cell(_argument(param))}` | {_cell(param.help or '')} |" for param in arguments] + [""]
    panels: dict[str, list[Any]] = {}
    for param in options:
        if param.help:  # one without is for ajet's own processes
            panels.setdefault(getattr(param, "rich_help_panel", None) or "", []).append(param)
    for title, shown in panels.items():
        lines += [f"{title}:", ""] if title else []
        lines += ["| option | meaning |", "|---|---|", *map(_option, shown), ""]
    return lines


def _option(param: Any) -> str:
    """An option's row, with both names of a switch that has two."""
    name = " / ".join([param.opts[0], *param.secondary_opts[:1]])
    metavar = "" if param.is_flag else f" {param.metavar or param.name.upper()}"
    return f"| `{_cell(name + metavar)}` | {_cell(param.help or '')} |"


def _in_usage(param: Any) -> str:
    name = _argument(param)
    return f"{name if param.required else f'[{name}]'}{'...' if param.nargs == -1 else ''}"


def _argument(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
