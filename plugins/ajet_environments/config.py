"""`services`: programs beside a run, by name."""

from __future__ import annotations

from ajet.config.schema.base import Section, key
from ajet.config.schema.extended import PluginKeys


class Companion(Section):
    """One of them."""

    command: str | list[str] = key("", "Program and arguments; no shell reads them.", training=False, min_length=1)
    cwd: str | None = key(None, "Its working folder; null is the YAML's.", training=False)
    env: dict[str, str] = key({}, "Variables beside those of the run.", training=False)
    ready: str | None = key(
        None,
        "When it is ready: an address that answers (http://…, tcp://HOST:PORT), or a text that it prints; null: at "
        "once.",
        training=False,
    )
    timeout: float = key(60.0, "Seconds that it may take to be ready.", training=False, gt=0)
    restarts: int = key(
        3,
        "Times in a row that it is started again where it ended with an error or was killed; one that was ready for a "
        "minute counts anew. 0: never.",
        training=False,
        ge=0,
    )
    confined: bool = key(
        False,
        "Run it in a sandbox (bubblewrap): no network but its one port, that of `ready`; no file of this machine but "
        "programs, its folder and `shows`, read-only; no variable but `env`. Refused where there is none.",
        training=False,
    )
    shows: list[str] = key([], "Folders that one that is confined reads, too.", training=False)
    only_with_flag: bool = key(False, "Start it only where `--with-NAME` is given.", training=False)


class ServiceKeys(PluginKeys):
    """Programs beside a run."""

    services: dict[str, Companion] = key(
        {},
        "Programs that a run needs beside it, by name: each is started before it and ended after it. "
        "`{command, cwd, env, ready, timeout, restarts, confined, shows, only_with_flag}`, see docs/environments.md.",
        training=False,
    )
