"""Selects which variables of ajet's own environment a command inherits.

Invariant: an agent with a shell finds no secret of ajet: only listed variables that programs need to start are
inherited, and none that looks like a secret. Further variables are set in `env:` of the section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from loguru import logger

from ajet.config.other_models import OUTSIDE
from ajet.schema.secrets import has_secret_shape

_PROGRAM = (
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM COLORTERM NO_COLOR TMPDIR TMP TEMP "
    "XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR XDG_CONFIG_DIRS XDG_DATA_DIRS "
    "LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH VIRTUAL_ENV CONDA_PREFIX NODE_PATH "
    "PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONUTF8 PYTHONIOENCODING PYTHONDONTWRITEBYTECODE PYTHONHASHSEED "
    "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS CUDA_VISIBLE_DEVICES SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT"
)
_NETWORK = (
    "NO_PROXY no_proxy SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO"
)
_ALLOWED = frozenset(f"{_PROGRAM} {_NETWORK}".split())
_LOCALE = re.compile(r"LC_[A-Z_]+")
_PROXY = re.compile(r"(?:https?|all|ftp)_proxy", re.IGNORECASE)
_OF_THE_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
"""Variables set by every shell."""
_noted: set[frozenset[str]] = set()


def select_inherited(ours: Mapping[str, str], named: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that a command inherits. Names of withheld ones are logged once.

    Args:
        ours: variables of this process.
        named: variables that the YAML section sets.
    """
    inherited: dict[str, str] = {}
    withheld: list[str] = []
    for name, value in ours.items():
        if name.startswith(OUTSIDE) or OUTSIDE + name in ours:  # set by the run itself
            continue
        if _PROXY.fullmatch(name):
            inherited[name] = _strip_user(value)
            if inherited[name] != value:
                withheld.append(f"the user information in {name}")
        elif (name in _ALLOWED or _LOCALE.fullmatch(name)) and not has_secret_shape(value):
            inherited[name] = value
        elif name not in named and name not in _OF_THE_SHELL:
            withheld.append(name)
    _log_withheld(frozenset(withheld))
    return inherited


def _strip_user(proxy: str) -> str:
    """Remove user information: `http://user:password@host:3128` becomes `http://host:3128`, also without a scheme."""
    if "@" not in proxy:
        return proxy
    if "://" not in proxy:
        return proxy.rpartition("@")[2]
    parts = urlsplit(proxy)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _log_withheld(withheld: frozenset[str]) -> None:
    """Log the names of withheld variables, each set of names once per process."""
    if withheld and withheld not in _noted:
        _noted.add(withheld)
        logger.info(
            "the command agent does not get {} variables of ajet's environment, because they may be secrets: {} "
            "(see docs/command_agents.md)",
            len(withheld),
            ", ".join(sorted(withheld)),
        )
