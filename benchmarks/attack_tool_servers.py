"""Run the attack table of the GAIA tool servers against one server: ours, or a package's in its place.

    python benchmarks/attack_tool_servers.py fetch -- COMMAND ...
    python benchmarks/attack_tool_servers.py excel --dialect upstream2 -- excel-mcp-server stdio --allow-dir {folder}

`{folder}` in the command is the working folder, `{site}` a web server on this machine. The process prints one JSON
line: the tools of the server, how many attacks it held, and why it did not hold the others. What was found is in
benchmarks/results/libraries.jsonl.

Invariant: an attack is held only if the server answered in time, stayed within its memory, and gave nothing away; a
server that died or hung has not held it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECONDS, START_SECONDS = 70.0, 300.0
"""Time of one answer (ours end a request after 60 s), and of the first, before which packages are imported."""
MEMORY_MIB = 400
"""Growth of the server's memory that an attack may cause."""
HOSTILE = ("<a ", "<!--", "<![", "<a x='", "</", "<script>", "&#", "<", "[ ", "<pre> ")
ANSWER_BYTES = 201_000
SECRET = "secret-of-the-host"


class NoAnswerError(Exception):
    """The server died, or gave no answer in time."""


class StdioServer:
    """A tool server over its pipes."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._number, self._left = 0, b""
        client = {"name": "attacks", "version": "1"}
        self.request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result, or a failed one for an error. Raises NoAnswerError."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        end = time.monotonic() + (START_SECONDS if self._number == 1 else SECONDS)
        while True:
            line, found, rest = self._left.partition(b"\n")
            if not found:
                self._left += self._read(end)
                continue
            self._left = rest
            message = json.loads(line)
            if message.get("id") == self._number and "method" not in message:
                failed = {"isError": True, "content": [{"type": "text", "text": json.dumps(message.get("error"))}]}
                return message.get("result", failed)

    def call(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        """Return the text of an answer and whether the call failed. Raises NoAnswerError."""
        result = self.request("tools/call", name=tool, arguments=arguments)
        return "\n".join(str(part.get("text", "")) for part in result["content"]), bool(result.get("isError"))

    def list_tools(self) -> dict[str, list[str]]:
        """Return the names of the tools with those of their parameters."""
        return {tool["name"]: list(tool["inputSchema"].get("properties", {}))
                for tool in self.request("tools/list")["tools"]}  # fmt: skip

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        """Return the largest resident memory of the server so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise NoAnswerError("the server died") from None

    def _read(self, end: float) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
        data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
        if not data:
            raise NoAnswerError("the server died" if ready else "no answer in time")
        return data


class HostileSite(BaseHTTPRequestHandler):
    """A web server on this machine, with the pages of the attacks."""

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name == "robots.txt":
            self.send_error(404)
            return
        self.send_response(302 if name == "to-file" else 200)
        self.send_header("Content-Type", "text/html")
        if name == "to-file":
            self.send_header("Location", "file:///etc/passwd")
        if name == "bomb":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with suppress(OSError):
            self._write_page(name)

    def _write_page(self, name: str) -> None:
        if name == "bomb":
            self.wfile.write(gzip.compress(bytes(1_000_000_000), 1))
        elif name == "endless":
            for _ in range(2000):
                self.wfile.write(b"<p>word " * 131_072)
        elif name == "dripping":
            for _ in range(600):
                self.wfile.write(b"<p>word ")
                self.wfile.flush()
                time.sleep(0.5)
        elif name == "long":
            self.wfile.write(b"<p>" + b"word " * 180_000)
        elif name.startswith("hostile-"):
            self.wfile.write((HOSTILE[int(name.rsplit("-", 1)[1])] * 10_000).encode())
        else:
            self.wfile.write(b"<title>T</title><p>Hello there")

    def log_message(self, *_: object) -> None:
        pass


class DualStackServer(ThreadingHTTPServer):
    """A server at both loopback addresses."""

    address_family = socket.AF_INET6
    daemon_threads = True


@dataclass
class AttackRun:
    """The server under attack, its folder, and what was held so far."""

    start: Callable[[], StdioServer]
    folder: Path
    site: str
    held: dict[str, bool] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    server: StdioServer | None = None

    def check(self, name: str, attack: Callable[[StdioServer], str]) -> None:
        """Run one attack, which returns "" if it was held. The next one finds a server that is well."""
        server = self.server or self.start()
        self.server = server
        try:
            before = server.peak_mib()
            reason = attack(server)
            grown = server.peak_mib() - before
            reason = reason or (f"memory grew by {grown:.0f} MiB" if grown > MEMORY_MIB else "")
        except (NoAnswerError, OSError, IndexError) as error:
            reason = str(error) or type(error).__name__
        if reason:
            server.end()
            self.server = None
        self.held[name] = not reason
        if reason:
            self.reasons[name] = reason[:200]


def attack_fetch(run: AttackRun) -> None:
    """Addresses of this machine, schemes, and pages without an end."""
    port = run.site.rsplit(":", 1)[1]
    for host in ("127.0.0.1", "localhost", "[::1]", "2130706433", "0.0.0.0", "[::ffff:127.0.0.1]"):

        def read_private(server: StdioServer, host: str = host) -> str:
            text, failed = server.call("fetch", url=f"http://{host}:{port}/")
            return "" if failed and "Hello" not in text else "a private address was read"

        run.check(f"private address {host}", read_private)
    for url in ("file:///etc/passwd", "ftp://example.org/x", "gopher://example.org/x", f"{run.site}/to-file"):

        def read_scheme(server: StdioServer, url: str = url) -> str:
            text, failed = server.call("fetch", url=url)
            return "" if failed and "root:" not in text else "the scheme was accepted"

        run.check(f"scheme {url.rsplit(':', 1)[0] if url.startswith('http') else url}"[:40], read_scheme)


def attack_fetch_bounds(run: AttackRun) -> None:
    """Pages without an end; a server of ours is started with --private for them."""
    for page in ("endless", "dripping", "bomb"):
        run.check(f"page {page}", lambda server, page=page: (server.call("fetch", url=f"{run.site}/{page}"), "")[1])

    def read_long(server: StdioServer) -> str:
        text, _ = server.call("fetch", url=f"{run.site}/long", max_length=999_999)
        return "" if len(text.encode()) < ANSWER_BYTES else f"the answer has {len(text.encode())} bytes"

    run.check("answer bounded", read_long)

    def read_hostile(server: StdioServer) -> str:
        before = server.cpu_seconds()
        for number in range(len(HOSTILE)):
            server.call("fetch", url=f"{run.site}/hostile-{number}")
        used = server.cpu_seconds() - before
        return "" if used < 5 else f"{used:.0f} s of processor time"

    run.check("hostile markup", read_hostile)


def attack_time(run: AttackRun) -> None:
    """Zones that are paths, and times that are none."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "zone is a path below": ("get_current_time", {"timezone": "../../etc/passwd"}),
        "zone is an absolute path": ("get_current_time", {"timezone": "/etc/passwd"}),
        "zone with a zero byte": ("get_current_time", {"timezone": "UTC\0"}),
        "zone of 100,000 characters": ("get_current_time", {"timezone": "A" * 100_000}),
        "empty zone": ("get_current_time", {"timezone": ""}),
        "hour 25": ("convert_time", {"source_timezone": "UTC", "time": "25:00", "target_timezone": "UTC"}),
        "time is no text": ("convert_time", {"source_timezone": "UTC", "time": 7, "target_timezone": "UTC"}),
        "unknown argument": ("get_current_time", {"timezone": "UTC", "zone": "UTC"}),
        "unknown tool": ("nope", {}),
    }
    for name, (tool, arguments) in calls.items():

        def refuse(server: StdioServer, tool: str = tool, arguments: Mapping[str, Any] = arguments) -> str:
            text, failed = server.call(tool, **arguments)
            if len(text.encode()) > ANSWER_BYTES:
                return f"the refusal has {len(text.encode())} bytes"
            return "" if failed else f"accepted: {text[:80]}"

        run.check(name, refuse)
    now = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kolkata"}
    run.check("contract: 12:00 UTC is 17:30 in Kolkata",
              lambda server: "" if "17:30:00" in server.call("convert_time", **now)[0] else "another time")  # fmt: skip


EXCEL: dict[str, dict[str, Callable[[str], tuple[str, dict[str, Any]]]]] = {
    "aworld": {  # the names of AWorld's GAIA environment, and of the package before 2.0
        "read": lambda path: ("read_data_from_excel", {"filepath": path, "sheet_name": "Sheet"}),
        "create": lambda path: ("create_workbook", {"filepath": path}),
        "write": lambda path: (
            "write_data_to_excel", {"filepath": path, "sheet_name": "Sheet", "data": [["x"]], "start_cell": "A1"}),
        "merge": lambda path: (
            "merge_cells",
            {"filepath": path, "sheet_name": "Sheet", "start_cell": "A1", "end_cell": "XFD1048576"}),
        "formula": lambda path: (
            "apply_formula", {"filepath": path, "sheet_name": "Sheet", "cell": "A1", "formula": 'SUM("'}),
    },
    "upstream2": {
        "read": lambda path: ("read_range", {"path": path, "sheet": "Sheet"}),
        "create": lambda path: ("create_workbook", {"path": path}),
        "write": lambda path: ("write_range", {"path": path, "sheet": "Sheet", "at": "A1", "rows": [["x"]]}),
        "merge": lambda path: ("merge_cells", {"path": path, "sheet": "Sheet", "range": "A1:XFD1048576"}),
        "formula": lambda path: (
            "write_range", {"path": path, "sheet": "Sheet", "at": "A1", "rows": [['=SUM("']]}),
    },
}  # fmt: skip


def make_ways_out(folder: Path) -> list[str]:
    """Put links and pipes into the folder, and a secret workbook beside it; return the paths to try."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Sheet"
    book.active["A1"] = SECRET
    book.save(folder.parent / "secret.xlsx")
    book.active["A1"] = "public"
    book.save(folder / "mine.xlsx")
    (folder / "link.xlsx").symlink_to(folder.parent / "secret.xlsx")
    (folder / "up").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe.xlsx")
    inside = str(folder.parent / "secret.xlsx")
    return ["../secret.xlsx", "link.xlsx", "up/secret.xlsx", inside, "a/../../secret.xlsx", "pipe.xlsx", "a\0b.xlsx"]


def make_bomb(path: Path) -> None:
    """Write an Office file whose sheet and document unpack to a gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        types = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
        archive.writestr("[Content_Types].xml", types)
        for name in ("word/document.xml", "xl/worksheets/sheet1.xml", "xl/workbook.xml"):
            with archive.open(name, "w", force_zip64=True) as member:
                for _ in range(400):
                    member.write(b"<a>" * 300_000)


def attack_excel(run: AttackRun, dialect: str) -> None:
    """Paths out of the folder, bombs, and ranges without an end."""
    words, paths = EXCEL[dialect], make_ways_out(run.folder)
    secret = run.folder.parent / "secret.xlsx"
    content = secret.read_bytes()
    for path in paths:
        for action in ("read", "write", "create"):

            def escape(server: StdioServer, path: str = path, action: str = action) -> str:
                tool, arguments = words[action](path)
                text, failed = server.call(tool, **arguments)
                changed = secret.read_bytes() != content
                secret.write_bytes(content)
                if changed:
                    return "the file outside was changed"
                # servers of before 2.0 answer a failure as a text that begins with Error
                refused = failed or text.startswith("Error")
                return "" if refused and SECRET not in text else f"accepted: {text[:80]}"

            run.check(f"{action} {path.replace(str(run.folder.parent), '/ABSOLUTE')!r}", escape)
    make_bomb(run.folder / "bomb.xlsx")
    (run.folder / "text.xlsx").write_text("no archive")

    def refuse(action: str, path: str) -> Callable[[StdioServer], str]:
        def call(server: StdioServer) -> str:
            before = server.cpu_seconds()
            tool, arguments = words[action](path)
            text, failed = server.call(tool, **arguments)
            used = server.cpu_seconds() - before
            if used > 20:
                return f"{used:.0f} s of processor time"
            return "" if failed or text.startswith("Error") else f"accepted: {text[:80]}"

        return call

    for name, action, path in (
        ("zip bomb", "read", "bomb.xlsx"),
        ("no archive", "read", "text.xlsx"),
        ("17 billion cells merged", "merge", "mine.xlsx"),
        ("formula with an open quote", "formula", "mine.xlsx"),
        ("workbook replaced by a new one", "create", "mine.xlsx"),
    ):
        run.check(name, refuse(action, str(run.folder / path) if dialect == "aworld" else path))
    _attack_long_sheet(run, words)


def _attack_long_sheet(run: AttackRun, words: Mapping[str, Callable[[str], tuple[str, dict[str, Any]]]]) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Sheet"
    for _ in range(4000):
        book.active.append(["word" * 10] * 20)
    book.save(run.folder / "long.xlsx")

    def read_long(server: StdioServer) -> str:
        tool, arguments = words["read"](str(run.folder / "long.xlsx"))
        text, _ = server.call(tool, **arguments)
        return "" if len(text.encode()) < ANSWER_BYTES else f"the answer has {len(text.encode())} bytes"

    run.check("answer bounded", read_long)


def attack_documents(run: AttackRun) -> None:
    """Addresses, paths and files for `convert_to_markdown`."""
    secret = run.folder.parent / "secret.txt"
    secret.write_text(SECRET)
    (run.folder / "link.txt").symlink_to(secret)
    os.mkfifo(run.folder / "pipe.txt")
    make_bomb(run.folder / "bomb.docx")
    with (run.folder / "wide.csv").open("wb") as file:
        file.truncate(1_000_000_000)
    uris = {
        "absolute path": f"file://{secret}",
        "path above": f"file://{run.folder}/../secret.txt",
        "symbolic link": f"file://{run.folder}/link.txt",
        "password file": "file:///etc/passwd",
        "private address": f"{run.site}/",
        "named pipe": f"file://{run.folder}/pipe.txt",
        "zip bomb": f"file://{run.folder}/bomb.docx",
        "line of a gigabyte": f"file://{run.folder}/wide.csv",
        "page endless": f"{run.site}/endless",
        "page dripping": f"{run.site}/dripping",
        "page bomb": f"{run.site}/bomb",
    }
    for name, uri in uris.items():

        def refuse(server: StdioServer, uri: str = uri) -> str:
            text, failed = server.call("convert_to_markdown", uri=uri)
            if len(text.encode()) > ANSWER_BYTES:
                return f"the answer has {len(text.encode())} bytes"
            return "" if failed and SECRET not in text and "root:" not in text else f"accepted: {text[:60]!r}"

        run.check(name, refuse)


def attack_papers(run: AttackRun) -> None:
    """Ids of papers that are paths."""
    (run.folder.parent / "secret.md").write_text(SECRET)
    for paper in ("../secret", str(run.folder.parent / "secret"), "a/../../secret", "2101.00001/../../secret", ""):

        def refuse(server: StdioServer, paper: str = paper) -> str:
            text, failed = server.call("read_paper", paper_id=paper)
            refused = failed or '"error"' in text[:60] or "error" in text[:80].lower()
            return "" if refused and SECRET not in text else f"accepted: {text[:80]!r}"

        run.check(f"read {paper.replace(str(run.folder.parent), '/ABSOLUTE')!r}", refuse)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["fetch", "fetch-bounds", "time", "excel", "documents", "papers"])
    parser.add_argument("--dialect", choices=sorted(EXCEL), default="aworld")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    site = DualStackServer(("::", 0), HostileSite)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{site.server_port}"
    with tempfile.TemporaryDirectory(prefix="attacks-") as top:
        folder = Path(top, "work")
        folder.mkdir()
        words = [word.format(folder=folder, site=address) for word in given.command]
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        run = AttackRun(lambda: StdioServer(words, folder, environment), folder, address)
        run.server = run.start()
        tools = run.server.list_tools()
        attacks: dict[str, Callable[[], None]] = {
            "fetch": lambda: attack_fetch(run),
            "fetch-bounds": lambda: attack_fetch_bounds(run),
            "time": lambda: attack_time(run),
            "excel": lambda: attack_excel(run, given.dialect),
            "documents": lambda: attack_documents(run),
            "papers": lambda: attack_papers(run),
        }
        attacks[given.kind]()
        if run.server is not None:
            run.server.end()
    print(
        json.dumps({"tools": tools, "held": sum(run.held.values()), "attacks": len(run.held), "not_held": run.reasons})
    )


if __name__ == "__main__":
    main()
