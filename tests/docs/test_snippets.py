"""Every block in README and docs composes, runs or parses; links and named keys exist.

Launches are played as `--dry-run` with a model that comes with ajet and a local data set in place of the hub's: all
references, keys, flags and files that a page names are resolved, and nothing is started.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ajet.config import load_experiment
from scripts.reference.pages import performance_md
from tests.docs.snippets import PAGES, REFERENCE, ROOT, Block, blocks, commands, write_project
from tests.docs.test_chinese_pages import OTHER_SOURCE, chinese
from tests.docs.test_chinese_pages import PAGES as TRANSLATED
from tests.support.viewer_fixtures import write_run

ALL = [block for page in PAGES for block in blocks(page)]
COPIES = {chinese(page) for page in TRANSLATED if page not in OTHER_SOURCE}
"""Pages whose blocks are those of the English page, comments aside (test_chinese_pages.py): run once."""
LANGUAGES = {"yaml", "python", "bash", "json", "text", "sh", "javascript", "dockerfile"}
MOST_NOT_RUN = 8
OFFLINE_MODEL = "model.path=embedded:tiny-tools"
PARSED_ONLY = {
    "stop",
    "chat",
    "prove",
    "audit",
    "gc",
    "status",
    "completion",
    "serve",
    "view",
    "episodes",
    "export",
    "eval",
    "compare",
    "optimize-prompt",
    "report",
    "env",
    "judge",
    "rejudge",
}
"""Commands that need a run, go on until they are stopped, change the shell's own files, or ask a
model elsewhere."""
INSTALLS = {ROOT / "tutorial" / "example_verifiers" / "README.md"}
"""Pages whose first command makes an environment of packages from an index."""
TRAINS = {ROOT / "docs" / "sft.md"}
"""Pages whose commands train a model."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def of(language: str) -> list[Block]:
    found = [block for block in ALL if block.language == language and not block.excuse]
    return [block for block in found if block.page not in COPIES]


@pytest.fixture
def gsm8k(tmp_path):
    """Two rows, laid out like the hub's data set."""
    rows = [{"question": "What is 20 + 22?", "answer": "20 + 22 = 42\n#### 42"} for _ in range(2)]
    folder = tmp_path / "data" / "gsm8k" / "main"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_there_are_pages():
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "README_zh.md", "docs/first_agent.md", "docs/first_agent_zh.md"} <= names
    assert all(page.read_text().strip() for page in PAGES)


def test_every_block_names_a_known_language():
    assert [str(block) for block in ALL if block.language not in LANGUAGES] == []


def runs_elsewhere(excuse: str) -> bool:
    """Whether it names tests that are there."""
    return any(True for word in re.findall(r"(?:plugins/\w+/)?tests/[\w/*.]+\.py", excuse) for _ in ROOT.glob(word))


def test_few_blocks_are_not_run():
    """Of English pages: the Chinese ones have the same blocks (test_chinese_pages). What an excuse names runs them."""
    english = [block for block in ALL if block.excuse and not block.page.stem.endswith("_zh")]
    excused = [f"{block}: {block.excuse}" for block in english if not runs_elsewhere(block.excuse)]
    assert len(excused) <= MOST_NOT_RUN, excused


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_composes(block, tmp_path):
    file = tmp_path / "block.yaml"
    file.write_text(block.text)
    given = yaml.safe_load(block.text)
    experiment = load_experiment(file)
    for section in set(given) - {"ajet", "hydra", "defaults", "verl", "trinity"}:
        assert experiment.sections[section] == given[section]
    assert experiment.ajet.project_name == given.get("ajet", {}).get("project_name", "ajet_default_project")


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_parses(block):
    json.loads(block.text)


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    for run in re.findall(r'ajet\.record\.open\("(\w+)"\)', block.text):
        write_run(tmp_path / "launcher_record" / run)
    file = tmp_path / "block.py"
    file.write_text(block.text)
    module_name = f"block_of_{block.page.stem}_{block.line}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module_name, module)
    spec.loader.exec_module(module)
    for found in vars(module).values():
        if isinstance(found, type) and found.__module__ == module_name and hasattr(found, "execute"):
            found()  # a workflow class is made once per episode without arguments


def with_commands() -> list:
    """Pages that hold commands; where they install an environment or train, the page is extra slow."""
    pages = [page for page in PAGES if any(block.language == "bash" for block in blocks(page)) and page not in COPIES]
    return [
        pytest.param(
            page, id=name(page), marks=pytest.mark.extra_slow if page in INSTALLS | TRAINS else pytest.mark.slow
        )
        for page in pages
    ]


@pytest.mark.parametrize("page", with_commands())
def test_commands(page, tmp_path, monkeypatch, gsm8k, capfd):
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "160")
    write_project(page, project)
    for block in blocks(page):
        if block.language == "bash" and not block.excuse:
            for words in commands(block):
                run(words, str(block), str(gsm8k))


def run(words: list[str], where: str, gsm8k: str) -> None:
    """Run one command, or the nearest harmless thing to it. Raises AssertionError for one that is not known."""
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program in ("mkdir", "touch"):
        assert all(not word.startswith(("/", "..")) for word in rest), where
        subprocess.run([program, "-p", *rest] if program == "mkdir" else words, check=True)
    elif program == "make":
        done = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{where}: {done.stderr}"
    elif words[:2] == ["pip", "install"] or words[:3] == ["uv", "pip", "install"]:
        (wanted,) = re.findall(r"\[([\w,-]+)\]", " ".join(rest)) or [""]
        known = re.search(r"\[project.optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.S)
        assert known is not None
        assert set(filter(None, wanted.split(","))) <= set(re.findall(r"^([\w-]+) = \[", known[1], re.M)), where
    elif program == "ruff" or words[1:3] == ["-m", "pytest"]:
        named = [word for word in rest if not word.startswith("-") and (ROOT / word).exists()]
        assert named, where
    elif program == "python" and Path(rest[0]).is_file():
        subprocess.run([sys.executable, *rest], check=True)
    elif program == "ajet":
        run_ajet(rest, where, gsm8k)
    elif words[:3] == ["python", "-m", "ajet.cli.launcher"]:
        run_ajet(words[3:], where, gsm8k)
    else:
        raise AssertionError(f"{where}: the test does not know the command {program}")


def run_ajet(arguments: list[str], where: str, gsm8k: str) -> None:
    from ajet.cli.launcher import app, main

    if arguments[0] in PARSED_ONLY:
        from typer.main import get_command

        command = get_command(app)
        with command.make_context("ajet", list(arguments)) as context:
            called, found, rest = command.resolve_command(context, list(arguments))
            found.make_context(called, rest, parent=context)
        return
    given = list(arguments)
    if given[0].startswith("-") and "--help" not in given:
        yaml_file = Path(given[given.index("--conf") + 1]) if "--conf" in given else None
        if yaml_file is not None and (beside := ROOT / yaml_file).is_file() and "  services:" in beside.read_text():
            # its services would be started, and test_tutorials plays it
            given = ["config", "validate", "--conf", str(beside)]
        else:
            given += ["--dry-run"]
        given.append(OFFLINE_MODEL)
        if "math_agent" in " ".join(given):
            given.append(f"task_reader.huggingface_dat_repo.dataset_path={gsm8k}")
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code in (0, None), f"{where}: ajet {' '.join(given)}"


LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", [*PAGES, *REFERENCE], ids=name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in {slug(line) for line in file.read_text().splitlines() if line.startswith("#")}, target


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    words = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return words.replace(" ", "-")


SECTIONS = "rollout|data|task_reader|task_judge|context_tracker|trainer_common|debug|gateway|model"
THEIRS = re.compile(r"^\| .* \| (?=(?:same|other|better|gone|相同|改名|更好|没有) \|)", re.M)
"""In the rows of the migration pages: names of another system."""
KEY = re.compile(rf"`(?:ajet\.)?((?:{SECTIONS})(?:\.\w+)+)(?:[:=] ?[^`]*)?`")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keys_named_in_the_text_exist(page):
    from ajet.config.schema.base import walk_keys
    from ajet.config.schema.extended import config_model

    known = {".".join(path) for path, _, _ in walk_keys(config_model(shipped=True))}
    known |= {key.rsplit(".", n)[0] for key in known for n in range(1, key.count(".") + 1)}
    text = THEIRS.sub("", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    named = {match[1] for match in KEY.finditer(text) if not is_module(match[1])}
    assert named <= known, sorted(named - known)


def is_module(dotted: str) -> bool:
    """Whether it is a module of a room that has a section's name."""
    room, module, *_ = dotted.split(".")
    return (ROOT / "ajet" / room / f"{module}.py").exists()


def test_the_performance_page_shows_the_measured_rows():
    assert performance_md() == (ROOT / "docs" / "performance.md").read_text()


@pytest.mark.parametrize("page", ["first_agent.md", "first_agent_zh.md"])
def test_the_first_agent_ends_as_the_tutorial_has_it(page, tmp_path):
    write_project(ROOT / "docs" / page, tmp_path)
    told = load_experiment(tmp_path / "math_agent" / "math_agent.yaml").ajet.model_dump()
    shipped = load_experiment(ROOT / "tutorial" / "example_math_agent" / "math_agent.yaml").ajet.model_dump()
    del shipped["trainer_common"]["trinity_only__n_vllm_engine"], told["trainer_common"]["trinity_only__n_vllm_engine"]
    assert told == shipped
