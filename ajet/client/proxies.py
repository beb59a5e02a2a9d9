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
    """Return NO_PROXY with loopback and `hosts` added, in both spellings; {} if no proxy is set."""
    set_variables = {name.lower() for name, value in environment.items() if value}
    if not set_variables & {f"{scheme}_proxy" for scheme in _SCHEMES}:
        return {}
    no_proxy = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    if no_proxy.strip() == "*":  # bypasses all proxies, but in Python only without further entries
        return {}
    entries = [entry.strip() for entry in no_proxy.split(",") if entry.strip()]
    value = ",".join(dict.fromkeys([*entries, *LOOPBACK, *filter(None, hosts)]))
    return {"NO_PROXY": value, "no_proxy": value}


def name_proxy(url: str) -> str:
    """Return the name of the variable with the proxy for `url`, such as "HTTPS_PROXY", or "" without a proxy."""
    address, proxies = urlsplit(url), getproxies_environment()
    if address.hostname in LOOPBACK or proxy_bypass(address.netloc):
        return ""
    return next((f"{scheme.upper()}_PROXY" for scheme in (address.scheme, "all") if proxies.get(scheme)), "")


def explain_proxies() -> str:
    """Return a description of a proxy variable that httpx cannot use, with advice; "" if all can be used."""
    for scheme, value in getproxies_environment().items():
        proxy_scheme, separator, _ = value.partition("://")
        if scheme not in _SCHEMES or not separator or proxy_scheme.lower() in ("http", "https"):
            continue
        variable = f"{scheme.upper()}_PROXY"
        if proxy_scheme.lower() not in _SOCKS:
            return (
                f"the variable {variable} names a proxy of the kind {proxy_scheme}://, which httpx does not support: "
                f"write {_SOCKS[0]}://"
            )
        if find_spec("socksio") is None:
            return (
                f"the variable {variable} names a SOCKS proxy, for which httpx needs a package: pip install socksio, "
                f"or unset {variable}"
            )
    return ""


def explain_problem(problem: BaseException) -> str:
    """Return a description of the proxy variable that caused an exception of httpx; "" for other exceptions."""
    message = str(problem)
    is_proxy = isinstance(problem, (ImportError, ValueError)) and (
        "SOCKS proxy" in message or "for proxy URL" in message
    )
    return explain_proxies() if is_proxy else ""
