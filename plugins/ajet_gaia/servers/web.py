"""Web requests with bounds: http and https only, public addresses, limited bytes and seconds.

Invariant: the connected address is the checked address, checked again at each redirect. Neither a name with changing
addresses nor a redirect leads into a private network. With a proxy in the environment (`https_proxy`, `http_proxy`) the
proxy resolves names, and only numeric addresses are checked.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import time
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

from .settings import Settings
from .tool import ToolError

AGENT = "Mozilla/5.0 (compatible; ajet tools)"
MAX_REDIRECTS = 5
MAX_PAGE = 5_000_000
"""Maximum bytes of a page read as text."""
MAX_JSON = 1_000_000
"""Maximum bytes of a JSON document; parsed objects need up to twenty times as much memory."""
CHUNK = 65536
SAFE = "/%?=&;,:@!$'()*+~#[]"


@dataclass(frozen=True)
class WebReply:
    """The response to a web request, with its body up to the size limit."""

    url: str
    """The last address, after redirects."""
    status: int
    headers: Message
    body: bytes
    cut: bool = False
    """True if the body exceeded the bound."""

    @property
    def kind(self) -> str:
        """The MIME type of the body, such as text/html."""
        return self.headers.get_content_type()

    def text(self) -> str:
        """The body as text, decoded by its charset."""
        charset = self.headers.get_content_charset() or "utf-8"
        try:
            return self.body.decode(charset, "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body, parsed as JSON."""
        if len(self.body) > MAX_JSON:
            raise ToolError(f"{self.url} answered JSON of more than {MAX_JSON:,} bytes")
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise ToolError(f"{self.url} answered no JSON") from None


def get(url: str, settings: Settings, *, limit: int = MAX_PAGE, timeout: float | None = None) -> WebReply:
    """Return the content of an address, after redirects; a status from 400 on raises ToolError."""
    return request("GET", url, settings, limit=limit, timeout=timeout)


def query(url: str, settings: Settings, **parameters: Any) -> WebReply:
    """GET an address with query parameters, without those that are None or empty. Raises ToolError."""
    nonempty = {name: value for name, value in parameters.items() if value not in (None, "")}
    return get(f"{url}?{urlencode(nonempty)}", settings)


def request(
    method: str,
    url: str,
    settings: Settings,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    limit: int = MAX_PAGE,
    timeout: float | None = None,
) -> WebReply:
    """Send a request, follow redirects of a GET, and return the reply.

    Args:
        limit: largest number of bytes read from the body.
        timeout: seconds for all redirects together; at most `settings.timeout`.

    Raises:
        ToolError: the network is off, the address is not allowed, the request failed, or its status is 400 or more.
    """
    if not settings.network:
        raise ToolError("the network is off here")
    deadline = time.monotonic() + min(timeout or settings.timeout, settings.timeout)
    for _ in range(MAX_REDIRECTS + 1):
        target = _parse_target(url)
        connection = _open_connection(target, settings, deadline)
        try:
            path = quote(target.path or "/", safe=SAFE) + (f"?{quote(target.query, safe=SAFE)}" if target.query else "")
            if connection.proxied:
                path = f"{target.scheme}://{target.netloc}{path}"
            all_headers = {"User-Agent": AGENT, "Accept-Encoding": "identity", **(headers or {})}
            connection.http.request(method, path, body=body, headers=all_headers)
            response = connection.http.getresponse()
            location = response.headers.get("Location")
            if response.status in (301, 302, 303, 307, 308) and location and method == "GET":
                url = urljoin(url, location)
                continue
            data, is_cut = _read_body(response, limit, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise ToolError(f"{url}: {error or type(error).__name__}") from None
        finally:
            connection.http.close()
        if response.status >= 400:
            raise ToolError(f"{url} answered {response.status} {response.reason}")
        return WebReply(url, response.status, response.headers, data, is_cut)
    raise ToolError(f"more than {MAX_REDIRECTS} redirects")


def is_private_address(address: str) -> bool:
    """Return True for an address of this machine, a private network, or a reserved range."""
    parsed = ipaddress.ip_address(address.split("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    return not parsed.is_global or parsed.is_multicast or (mapped is not None and not mapped.is_global)


def is_private_host(host: str | None) -> bool:
    """Return True if a name or one of its addresses is not public; an unresolvable name counts as private."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    return any(is_private_address(str(entry[4][0])) for entry in entries)


@dataclass(frozen=True)
class WebConnection:
    """A connection to a server or to a proxy."""

    http: http.client.HTTPConnection
    proxied: bool = False
    """True if the complete address is sent to a proxy."""


def _parse_target(url: str) -> SplitResult:
    """Return the parts of an address. Raises ToolError unless it is a valid http or https address."""
    try:
        target = urlsplit(url.strip())
        port = target.port
    except ValueError as error:
        raise ToolError(f"{url[:200]}: {error}") from None
    if target.scheme not in ("http", "https") or not target.hostname or port == 0:
        raise ToolError(f"{url[:200]} is no address of http or https")
    if any(ord(letter) <= 32 for letter in target.netloc):
        raise ToolError("an address has no spaces")
    return target


def _open_connection(target: SplitResult, settings: Settings, deadline: float) -> WebConnection:
    """Connect to the server of an address, or to the proxy of the environment.

    Without a proxy `_open_socket` opens the socket instead of http.client, so that the connected address is the checked
    one.

    Raises:
        ToolError: the server is not reachable, or its address is not public and private addresses are not allowed.
    """
    host, port = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    proxy = _find_proxy(target, host)
    if proxy is not None:
        if not settings.private and _is_number(host) and is_private_address(host):
            raise ToolError(f"{host} is no public address")
        proxy_connection = http.client.HTTPConnection(
            proxy.hostname or "", proxy.port or 80, timeout=_seconds_left(deadline)
        )
        if target.scheme == "http":
            return WebConnection(proxy_connection, proxied=True)
        tunnel = http.client.HTTPSConnection(proxy.hostname or "", proxy.port or 80, timeout=_seconds_left(deadline))
        tunnel.set_tunnel(host, port)
        return WebConnection(tunnel)
    connection = http.client.HTTPConnection(host, port, timeout=_seconds_left(deadline))
    connected_socket = _open_socket(host, port, settings, deadline)
    if target.scheme == "https":
        try:
            connected_socket = ssl.create_default_context().wrap_socket(connected_socket, server_hostname=host)
        except OSError as error:
            connected_socket.close()
            raise ToolError(f"{host}: {error}") from None
        connection.default_port = 443  # keeps the port out of the Host header
    connection.sock = connected_socket
    return WebConnection(connection)


def _open_socket(host: str, port: int, settings: Settings, deadline: float) -> socket.socket:
    """Resolve a host and connect to the first address that accepts.

    Raises:
        ToolError: one of its addresses is private and private addresses are not allowed, or none accepts.
    """
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host}: {error}") from None
    addresses = [str(entry[4][0]) for entry in entries]
    if not settings.private and any(is_private_address(address) for address in addresses):
        raise ToolError(f"{host} is no public address")
    last_error: OSError = OSError("no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=_seconds_left(deadline))
        except OSError as error:
            last_error = error
    raise ToolError(f"{host}: {last_error}")


def _find_proxy(target: SplitResult, host: str) -> SplitResult | None:
    """Return the proxy that the environment sets for this address, or None."""
    proxy = urllib.request.getproxies().get(target.scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _read_body(answer: http.client.HTTPResponse, limit: int, deadline: float) -> tuple[bytes, bool]:
    """Read and unpack a response's body until `limit` bytes.

    Returns:
        (bytes, True if more bytes follow).

    Raises:
        ToolError: the encoding is unknown or damaged, or the time is over.
    """
    encoding = (answer.headers.get("Content-Encoding") or "").lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ToolError(f"the answer is packed as {encoding}")
    # 32 lets zlib recognize the header of gzip or zlib.
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding not in ("", "identity") else None
    data = bytearray()
    while len(data) <= limit:
        _seconds_left(deadline)
        chunk = answer.read1(CHUNK)
        if not chunk:
            break
        try:
            data += chunk if decompressor is None else decompressor.decompress(chunk, limit + 1 - len(data))
        except zlib.error as error:
            raise ToolError(f"the answer cannot be unpacked: {error}") from None
    return bytes(data[:limit]), len(data) > limit


def _seconds_left(deadline: float) -> float:
    """Return the seconds until the deadline. Raises ToolError after it."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise ToolError("the request exceeded its time limit")
    return remaining


def _is_number(host: str) -> bool:
    """Return True if the host is a numeric IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
