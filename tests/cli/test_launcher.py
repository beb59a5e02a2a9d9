"""The `ajet` command around the runs: what it parses, prints and exits with."""

import ast
import io
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.cli.init import Template
from ajet.config.plugin import MAIN_PANEL
from ajet.config.plugins import find_all_commands
from ajet.schema.commands import format_command
from tests.support.ajet_process import ajet, environment

ROOT = Path(__file__).resolve().parents[2]
READY = """
ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: workflow.py->W}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "x.yaml").write_text(READY)
    (tmp_path / "workflow.py").write_text("class W: ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys, monkeypatch):
    """`main` in this process, as (exit code, stdout, stderr); log lines count as stdout."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            launcher.main(arguments)
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


@pytest.fixture
def launched(monkeypatch):
    """Where the launcher hands over: what a launch was given, instead of a run."""
    import ajet.commands.launch

    seen = []

    def take(experiment, options):
        seen.append((experiment, options))
        return 0

    monkeypatch.setattr(ajet.commands.launch, "launch", take)
    return seen


def test_help_is_grouped_and_short(run):
    code, text, _ = run("--help")
    assert code == 0 and len(text.splitlines()) <= 80
    for word in ("Experiment", "Start", "--conf", "--dry-run", "--backbone", "config", "init", "chat", "stop"):
        assert word in text
    assert "launch " not in text
    assert run()[1] == text and run("-h")[1] == text and run("--conf", "x.yaml", "--help")[1] == text


def test_help_shows_twelve_commands_before_the_rest(run):
    panels = defaultdict(list)
    for name, command in find_all_commands().items():
        panels[command.panel].append(name)
    assert len(panels[MAIN_PANEL]) <= 12 and {"init", "plan", "eval", "view"} <= set(panels[MAIN_PANEL])
    text = run("--help")[1]
    assert text.index(f" {MAIN_PANEL} ") < min(text.index(f" {panel} ") for panel in panels if panel != MAIN_PANEL)


def test_help_imports_nothing_heavy():
    code = """
import sys, json, atexit
atexit.register(lambda: print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))))
from ajet.cli.launcher import main
main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=environment())
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"torch", "ray", "transformers", "datasets", "hydra", "omegaconf", "pydantic", "numpy", "openai", "loguru"}
    assert "typer" in loaded and not heavy & loaded


def test_the_list_of_help_is_what_the_commands_say(run, monkeypatch):
    """The list is written without them; with each built it is the same, to the character."""
    from ajet.cli.launcher import RootGroup, build_typer_command
    from ajet.config.plugins import find_commands

    for name, entry in find_commands().items():
        first, _, _ = (build_typer_command(name).help or "").partition("\n\n")
        assert entry.help == " ".join(first.split()), name
    text = run("--help")[1]
    monkeypatch.delattr(RootGroup, "get_command")
    monkeypatch.delattr(RootGroup, "list_commands")
    assert run("--help")[1] == text


def test_only_the_command_that_is_named_is_built(tmp_path):
    code = "import sys\nfrom ajet.cli.launcher import main\ntry:\n    main([{0}])\nfinally:\n"
    code += "    print(*(name for name in sys.modules if name.startswith('ajet.cli.')))"
    loaded = {}
    for argument in ("--help", "stop"):
        given = [sys.executable, "-c", code.format(f"'{argument}', '--help'")]
        done = subprocess.run(given, cwd=tmp_path, text=True, capture_output=True, env=environment())
        loaded[argument] = set(done.stdout.splitlines()[-1].split())
    assert loaded["stop"] - loaded["--help"] == {"ajet.cli.stop"}
    assert (
        not {"ajet.cli.stop", "ajet_proof.cli.audit", "ajet_environments.cli.env", "ajet.cli.config"} & loaded["--help"]
    )


def test_composing_imports_neither_torch_nor_transformers(tmp_path):
    (tmp_path / "x.yaml").write_text(READY)
    code = "import sys\nfrom ajet.config import load_experiment\nload_experiment('x.yaml').dump_resolved()\n"
    code += "print(sorted({'torch', 'transformers', 'ray', 'datasets'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_version_and_module_entry(tmp_path):
    import ajet as package

    assert ajet("--version", cwd=tmp_path).stdout.strip() == f"ajet {package.__version__}"


@pytest.mark.parametrize("module", ["ajet", "ajet.launcher"])
def test_it_is_a_module_by_all_its_names(module, capsys, monkeypatch):
    import runpy

    monkeypatch.setattr("sys.argv", ["ajet", "--version"])
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert capsys.readouterr().out.startswith("ajet ")


def test_a_first_dash_means_launch_and_every_flag_arrives(project, run, launched):
    code, out, err = run(
        "--backbone", "local", "rollout.num_repeat=2", "--conf", "x.yaml", "--exp-dir", "runs", "--fresh",
        "--resume", "never", "--with-ray", "--with-logview", "--debug", "A|B", "--skip-check-avail-gpu",
        "--prefix", "p", "--with-appworld", "--with-lake", "--dry-run", "trainer_common.test_freq=-1",
    )  # fmt: skip
    assert code == 0, err
    ((experiment, options),) = launched
    assert experiment.ajet.backbone == "local" and experiment.ajet.rollout.num_repeat == 2
    assert experiment.ajet.trainer_common.test_freq == -1 and experiment.root == project / "runs"
    assert options.fresh and options.dry_run and options.skip_check_avail_gpu
    assert (options.resume, options.debug_tags, options.flags) == ("never", "A|B", ("ray", "logview"))
    assert (options.services, options.prefix) == (("appworld", "lake"), "p")
    assert "--with-ray has no effect" in out


def test_the_word_launch_and_quoted_choices(project, run, launched):
    assert run("launch", "--conf", "x.yaml", "--backbone=debug")[0] == 0
    assert run("--conf=x.yaml")[0] == 0
    assert run("x.yaml", "--backbone", "local", "rollout.num_repeat=2")[0] == 0
    assert [experiment.ajet.backbone for experiment, _ in launched] == ["debug", "debug", "local"]
    assert launched[-1][0].ajet.rollout.num_repeat == 2


def test_what_is_missing_is_exit_code_2(project, run, launched):
    (project / "x.yaml").write_text("ajet: {project_name: p}")
    code, _, err = run("--conf", "x.yaml")
    assert code == 2 and "The run still needs: ajet.model.path" in err and launched == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backbone", "verll", "--conf", "x.yaml"),
        ("--confg", "x.yaml"),
        ("trian",),
        ("config", "shwo"),
        ("--dry-run",),
    ],
)
def test_usage_errors_are_exit_code_2(project, run, launched, arguments):
    code, _, err = run(*arguments)
    assert code == 2 and err and "Traceback" not in err and launched == []
    assert "ajet launch" not in err, "nobody types it"


def raising(monkeypatch, error):
    import ajet.commands.launch

    def take(experiment, options):
        raise error

    monkeypatch.setattr(ajet.commands.launch, "launch", take)


def test_a_usage_error_has_no_validators_words(run):
    code, _, err = run("env", "render", "somewhere", "x.yaml", "--image", "i")
    assert code == 2 and "'somewhere' is not one of" in err and "Value error" not in err


@pytest.mark.parametrize(
    "arguments", [["--conf"], ["sft", "--conf"], ["serve", "--conf"], ["plan", "--conf"], ["eval"], ["eval", "--conf"],
                  ["sample", "--store", "s.db", "--conf"]],
)  # fmt: skip
def test_what_takes_seconds_says_at_once_what_it_reads(project, run, arguments):
    code, out, _ = run(*arguments, "nosuch.yaml")
    assert code == 2 and out.startswith("Reading nosuch.yaml …")


def test_what_is_read_is_said_beside_json(project, run):
    code, out, err = run("eval", "nosuch.yaml", "--json")
    assert code == 2 and out == "" and err.startswith("Reading nosuch.yaml …")


def test_a_store_that_cannot_be_is_said_before_a_run_is_begun(project, run):
    (project / "folder").mkdir()
    code, _, err = run("--conf", "x.yaml", "--backbone", "local", "--from-store", "sqlite:folder")
    assert code == 2 and "is a folder" in err and not (project / "launcher_record").exists()


@pytest.mark.parametrize("verb", ["launch", "serve"])
def test_a_runs_own_store_that_cannot_be_is_said_before_a_model_is_loaded(project, run, monkeypatch, verb):
    monkeypatch.setattr("ajet.backbone.open_backbone", lambda experiment: pytest.fail("the model was opened first"))
    (project / "folder").mkdir()
    settings = "store.type=sqlite", f"store.uri=sqlite:{project}/folder"
    code, _, err = run(verb, "--conf", "x.yaml", "--backbone", "local", *settings)
    assert code == 2 and "is a folder" in err


def test_a_ctrl_c_while_libraries_end_is_no_traceback_of_theirs(tmp_path):
    script = (
        "import atexit, os, signal\n"
        "from ajet.cli import launcher\n"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print('to the end', flush=True)))\n"
        "launcher.main(['--version'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("to the end\n") and done.stderr == ""


def test_an_environment_that_is_not_there_is_answered_with_those_that_are(project, run):
    code, _, err = run("env", "up", "nosuch")
    assert code == 2 and "There is no environment" in err and "gaia-local" in err
    code, _, err = run("env", "serve", "nosuch.py->World")
    assert code == 2 and "relative to the working directory" in err and "YAML" not in err


def test_a_users_error_is_one_screen(project, run, monkeypatch):
    from ajet.schema.errors import TaskError

    raising(monkeypatch, TaskError("Row 3 is no task.", where="tasks.jsonl:3", expected="an object", do="mend it"))
    code, _, err = run("--conf", "x.yaml")
    assert code == 2
    assert [line.split() for line in err.splitlines()] == [
        ["error", "Row", "3", "is", "no", "task."],
        ["where", "tasks.jsonl:3"],
        ["expected", "an", "object"],
        ["do", "mend", "it"],
    ]
    code, _, err = run("--conf", "x.yaml", "--traceback")
    assert code == 2 and "Traceback" in err and "Row 3 is no task." in err


@pytest.mark.parametrize("machine", ["version_info = (3, 10)", "platform = 'win32'"])
def test_other_pythons_and_windows_get_one_sentence(machine):
    program = f"import sys; sys.{machine}; from ajet.cli.launcher import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    (sentence,) = done.stderr.splitlines()
    assert done.returncode == 1 and sentence.startswith("ajet needs Python 3.11 or newer on Linux or macOS")
    for module in ("__init__", "__main__", "_version", "launcher", "cli/__init__"):
        text = (ROOT / "ajet" / f"{module}.py").read_text()
        assert "from __future__" not in text and ast.parse(text, feature_version=(3, 6))


def test_a_missing_package_names_its_extra(project, run, monkeypatch):
    raising(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    code, _, err = run("--conf", "x.yaml")
    assert code == 2 and "needs the package torch" in err and "[local]" in err and len(err.splitlines()) == 2


def test_anything_unexpected_is_exit_code_1_with_the_traceback_in_a_log(project, run, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-value")
    raising(monkeypatch, RuntimeError("broken inside with sk-very-secret-value"))
    code, _, err = run("--conf", "x.yaml")
    log = project / "launcher_record" / "crash.log"
    assert code == 1 and "RuntimeError: broken inside" in err and str(log) in err
    assert len(err.splitlines()) <= 10
    text = log.read_text()
    assert "Traceback (most recent call last)" in text and "sk-very-secret" not in text + err


def test_the_traceback_goes_to_the_runs_own_log_where_the_error_names_it(project, run, monkeypatch):
    error = RuntimeError("x")
    error.log = project / "run" / "logs" / "ajet.log"  # type: ignore[attr-defined]
    raising(monkeypatch, error)
    assert run("--conf", "x.yaml")[0] == 1
    assert "RuntimeError: x" in (project / "run" / "logs" / "ajet.log").read_text()


def test_ctrl_c_is_130(project, run, monkeypatch):
    raising(monkeypatch, KeyboardInterrupt())
    assert run("--conf", "x.yaml")[0] == 130


def test_the_exit_code_of_the_verb_is_the_commands(project, run, monkeypatch):
    import ajet.commands.launch
    import ajet.commands.stop

    monkeypatch.setattr(ajet.commands.launch, "launch", lambda experiment, options: 7)
    assert run("--conf", "x.yaml")[0] == 7
    seen = []
    monkeypatch.setattr(ajet.commands.stop, "stop", lambda run, root: seen.append((run, root)) or 0)
    assert run("stop", "math", "--exp-dir", "runs")[0] == 0
    assert seen == [("math", project / "runs")]


def test_kill_and_autokill(project, run, monkeypatch, launched):
    import ajet.commands.stop

    seen = []
    monkeypatch.setattr(ajet.commands.stop, "kill", lambda names, root: seen.append((names, root)) or 0)
    assert run("--kill", "a|b")[0] == 0 and launched == []
    assert run("--autokill", "--exp-dir", "runs", "--conf", "x.yaml")[0] == 0 and len(launched) == 1
    assert seen == [("a|b", project / "launcher_record"), (None, project / "runs")]


def test_a_name_that_no_run_has_is_said(project, run):
    code, text, _ = run("--kill", "nope")
    assert code == 0 and "no run named nope" in text
    for verb in ("stop", "chat", "episodes", "prove", "audit", "view"):
        code, _, shown = run(verb, "nope")
        assert code == 2 and "nope" in shown.splitlines()[0] and "  do " in shown, verb
    (project / "launcher_record" / "nope_at_all").mkdir(parents=True)
    for verb in ("stop", "chat", "episodes", "prove", "audit", "view"):
        assert "did you mean nope_at_all?" in run(verb, "nope_at_al")[2], verb
    for verb in ("stop", "chat", "episodes", "prove", "audit"):  # view shows what there is
        code, _, shown = run(verb, "nope_at_all")
        assert code == 2 and "did you mean" not in shown, "it is that one, which has played nothing"


def test_a_runs_name_is_whole_on_a_narrow_terminal(project, run, monkeypatch):
    name = "a_rather_long_name_of_an_experiment_that_somebody_gave"
    (project / "launcher_record" / name).mkdir(parents=True)
    (project / "launcher_record" / name / "status.json").write_text('{"phase": "rollout", "step": 3}')
    monkeypatch.setenv("COLUMNS", "60")
    code, text, _ = run("runs")
    assert code == 0 and name in "".join(line.split()[0] for line in text.splitlines()[1:]), text


@pytest.mark.parametrize(
    ("arguments", "where", "expected"),
    [(("--split", "held_out"), "--split", "validation"), (("--step", "x..y"), "--step", "3..9")],
)
def test_a_condition_on_episodes_that_makes_no_sense(project, run, arguments, where, expected):
    (project / "launcher_record" / "x" / "episodes").mkdir(parents=True)
    code, _, shown = run("episodes", "x", *arguments)
    assert code == 2 and where in shown and expected in shown


def test_config_show_is_yaml_that_loads_again(project, run):
    import yaml

    code, out, _ = run("config", "show", "--conf", "x.yaml", "rollout.temperature=0.25")
    assert code == 0 and yaml.safe_load(out)["ajet"]["rollout"]["temperature"] == 0.25
    assert yaml.safe_load(run("config", "show")[1])["ajet"]["rollout"]["num_repeat"] == 4


def test_config_why(project, run):
    (project / "x.yaml").write_text("ajet:\n  rollout:\n    temperature: 0.7\n")
    code, out, _ = run("config", "why", "rollout.temperature", "--conf", "x.yaml")
    assert code == 0 and out.splitlines()[0] == "ajet.rollout.temperature = 0.7"
    assert re.search(r"→ x.yaml\s+0.7  x.yaml:3:5", out) and re.search(r"ajet_default.yaml\s+0.9", out)
    assert run("config", "why", "rollout.temperature")[1].splitlines()[0] == "ajet.rollout.temperature = 0.9"
    code, _, err = run("config", "why", "rollout.temprature")
    assert code == 2 and "did you mean ajet.rollout.temperature?" in err


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rollout.user_workflow=nofile.py->X", ["nofile.py, which does not exist"]),
        ("rollout.user_workflow=workflow.py->V", ["refers to V, which the file does not define", "one of W"]),
        ("task_judge.judge_protocol=judge.py->J", ["judge.py, which does not exist"]),
        ("model.path=/nonexistent/foo", ["There is no model at '/nonexistent/foo'"]),
        ("task_reader={type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: task.jsonl}}}",
         ["task.jsonl does not exist", "training.file_path", "did you mean tasks.jsonl?"]),
        ("task_reader={type: huggingface_dat_repo, huggingface_dat_repo: {dataset_path: ./data}}", ["./data"]),
    ],
)  # fmt: skip
def test_config_validate_looks_for_what_is_named(project, run, setting, expected):
    (project / "tasks.jsonl").write_text('{"question": "q"}\n')
    code, _, err = run("config", "validate", "--conf", "x.yaml", setting)
    assert code == 2 and all(words in err for words in expected), err


def test_config_validate(project, run):
    code, out, _ = run("config", "validate", "--conf", "x.yaml")
    assert code == 0 and out.startswith("x.yaml is valid. Not checked: ") and out.count("\n") == 1
    assert "ajet.rollout.mode" in run("config", "validate", "--conf", "x.yaml", "rollout.mode=sync")[1]
    code, _, said = run("config", "validate", "--conf", "x.yaml", "trainer_common.algorithm.adv_estimator=own.py->A")
    assert code == 2 and "own.py, which does not exist" in said and "Traceback" not in said
    (project / "x.yaml").write_text("ajet: {}")
    assert run("config", "validate", "--conf", "x.yaml")[0] == 2


@pytest.mark.parametrize("template", ["math", "tool"])
def test_init_writes_two_files_that_compose_and_resolve(project, run, template):
    code, out, _ = run("init", "made", "--template", template)
    made = project / "made"
    assert code == 0 and format_command("--conf", f"made/{template}.yaml", "--backbone", "local") in out
    told = {".vscode", "AGENTS.md"}
    assert {path.name for path in made.iterdir()} == {f"{template}.yaml", "workflow.py"} | told

    from ajet.config import load_experiment, resolve_reference
    from ajet.schema.task import Task

    experiment = load_experiment(made / f"{template}.yaml", backbone="local")
    experiment.require_ready()
    assert experiment.list_idle_keys() == []
    reader = resolve_reference(experiment.ajet.task_reader.type, base=experiment.base)(experiment.config)
    train, held_out = reader.tasks("train"), reader.tasks("validation")
    assert len(held_out) >= 32 and all(isinstance(task, Task) for task in (*train, *held_out))
    assert not {task.task_id for task in train} & {task.task_id for task in held_out}
    assert hasattr(resolve_reference(experiment.ajet.rollout.user_workflow, base=made), "execute")

    before = (made / "workflow.py").read_text()
    code, _, err = run("init", "made", "--template", template)
    assert code == 2 and "exists already" in err and (made / "workflow.py").read_text() == before


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("ajet --ba", 1, ["--backbone"]),
        ("ajet --backbone ", 2, ["debug", "local", "trinity", "verl"]),
        ("ajet config w", 2, ["why"]),
        ("ajet --conf x.yaml --dr", 3, ["--dry-run"]),
        ("ajet init made --template ", 4, [each.value for each in Template]),
    ],
)
def test_shell_completion(tmp_path, words, position, expected):
    asked = {"_AJET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = subprocess.run(
        [sys.executable, "-c", "from ajet.cli.launcher import main; main([])"],
        env={**os.environ, **asked}, cwd=tmp_path, text=True, capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_no_crash(project):
    script = f'{sys.executable} -m ajet.cli.launcher config show | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], text=True, capture_output=True, env=environment(), cwd=project)
    assert "Traceback" not in done.stderr and not (project / "launcher_record").exists()


def test_f5_in_a_clone_debugs_the_tool_template_offline_and_the_open_yaml():
    root = Path(launcher.__file__).parents[2]
    text = re.sub(r"^\s*//.*$", "", (root / ".vscode" / "launch.json").read_text(), flags=re.M)
    first, opened, *_ = json.loads(text)["configurations"]
    assert first["module"] == opened["module"] == "ajet.cli.launcher" and first["type"] == "debugpy"
    assert first["args"][:3] == ["--backbone", "debug", "--conf"] and opened["args"][2:] == ["--conf", "${file}"]
    told = (root / first["args"][3]).read_text()
    assert "path: embedded:tiny-tools" in told, "comes with ajet: nothing is fetched"
    interpreter = json.loads((root / ".vscode" / "settings.json").read_text())["python.defaultInterpreterPath"]
    assert interpreter == "${workspaceFolder}/.venv/bin/python"


def test_a_folder_that_cannot_be_written_is_no_bug_of_ajets(run, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = run("init", "made")
    assert code == 2 and "made cannot be written: Read-only file system." in err and "a bug in ajet" not in err


def test_signs_that_a_terminal_cannot_show_end_no_command(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    with pytest.raises(SystemExit):
        launcher.main(["--version"])
    print("2 tasks × 8 episodes …")  # as a plan has it
    assert b"2 tasks ? 8 episodes ?" in shown.getvalue()


def test_a_terminal_without_a_size_has_a_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "0")
    with pytest.raises(SystemExit):
        launcher.main(["--version"])
    assert "COLUMNS" not in os.environ


def test_a_working_directory_that_is_gone_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as ended:
        launcher.main(["runs"])
    assert ended.value.code == 2 and "The working directory does not exist" in capsys.readouterr().err


def test_a_store_to_train_from_needs_a_backbone_that_trains(project, run, launched):
    code, _, err = run("--conf", "x.yaml", "--from-store", "sqlite:s.db")
    assert code == 2 and "backbone debug trains nothing" in err and launched == []
    assert run("--conf", "x.yaml", "--from-store", "sqlite:s.db", "--backbone", "local")[0] == 0


def test_what_is_no_digest_of_a_link_is_no_change_of_a_run(project, run):
    code, _, err = run("audit", "x", "--head", "abcdefgh")
    assert code == 2 and "abcdefgh" in err and "--head" in err


def test_the_page_of_the_commands_has_whole_sentences_each_panel_once_and_both_names_of_a_switch():
    from ajet.cli.launcher import build_typer_command
    from ajet.config.plugins import find_commands
    from scripts.reference.pages import cli_md

    page = cli_md()
    for section in page.split("\n## ")[1:]:
        name, titles = section.partition("\n")[0], re.findall(r"^(\S.*):\n\n\| option", section, re.M)
        assert len(titles) == len(set(titles)), name
        assert section.count("| option |") <= len(titles) + 1, name
    for name in find_commands():
        command = build_typer_command(name)
        for each in (command, *getattr(command, "commands", {}).values()):
            first, _, _ = (each.help or "").partition("\n\n")
            assert "\n" not in first, f"{each.name}: the terminal breaks a paragraph, not the source"
            assert hasattr(each, "commands") or f"\n{first}\n" in page, each.name
    assert "--token / --no-token" in page and "[[" not in page and "--beside-run" not in page
