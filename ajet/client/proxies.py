"""Proxy variables of the environment: loopback bypasses proxies, and unusable variables are reported.

Invariant: only names of variables are printed, never values, which may hold passwords.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SCHEMES = ("http", "https", "all")
_SOCKS = ("socks5", "socks5h")


def build_bypass(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Return variables to bypass proxies for loopback and `hosts`, or {} without a proxy."""
    set_here = {name.lower() for name, value in environment.items() if value}
    if not set_here & {f"{scheme}_proxy" for scheme in _SCHEMES}:
        return {}
    no_proxy = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    if no_proxy.strip() == "*":  # Python's own clients know it alone only
        return {}
    entries = [each.strip() for each in no_proxy.split(",") if each.strip()]
    value = ",".join(dict.fromkeys([*entries, *LOOPBACK, *filter(None, hosts)]))
    return {"NO_PROXY": value, "no_proxy": value}


def name_proxy(url: str) -> str:
    """Return the variable of the proxy for `url`, or "" without a proxy."""
    parts, proxies = urlsplit(url), getproxies_environment()
    if parts.hostname in LOOPBACK or proxy_bypass(parts.netloc):
        return ""
    return next((f"{scheme.upper()}_PROXY" for scheme in (parts.scheme, "all") if proxies.get(scheme)), "")


def explain_proxies() -> str:
    """Describe a proxy variable unusable by httpx, with advice, or return ""."""
    for scheme, value in getproxies_environment().items():
        kind, separator, _ = value.partition("://")
        if scheme not in _SCHEMES or not separator or kind.lower() in ("http", "https"):
            continue
        name = f"{scheme.upper()}_PROXY"
        if kind.lower() not in _SOCKS:
            return (
                f"the variable {name} names a proxy of the kind {kind}://, which httpx does not support: write "
                f"{_SOCKS[0]}://"
            )
        if find_spec("socksio") is None:
            return (
                f"the variable {name} names a SOCKS proxy, for which httpx needs a package: pip install socksio, "
                f"or unset {name}"
            )
    return ""


def explain_problem(problem: BaseException) -> str:
    """Describe a proxy problem behind an HTTP client's exception, or return "" for other exceptions."""
    words = str(problem)
    is_proxy = isinstance(problem, (ImportError, ValueError)) and ("SOCKS proxy" in words or "for proxy URL" in words)
    return explain_proxies() if is_proxy else ""
