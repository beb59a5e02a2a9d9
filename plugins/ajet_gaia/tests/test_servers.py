"""Tools of the GAIA servers, called in this process; and what a model could try with them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import threading
import time
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ajet_gaia.servers import (
    calculator,
    clock,
    corpus_search,
    download,
    fetch,
    filesystem,
    git,
    google,
    intelligence_code,
    memory,
    python_code,
    readweb,
    sqlite,
    terminal,
    terminal_controller,
    web,
    wikipedia,
)
from ajet_gaia.servers.html_text import readable
from ajet_gaia.servers.mcp import answer_call
from ajet_gaia.servers.settings import Settings
from ajet_gaia.servers.tool import FunctionTool, ToolError
from ajet_gaia.servers.web import is_private_address

pytestmark = pytest.mark.slow


class Server:
    """A server's tools in this process, called as over the wire."""

    def __init__(self, module, root: Path, **more) -> None:
        self.settings = Settings(root=root, **more)
        self.tools = {tool.name: tool for tool in map(FunctionTool, module.tools(self.settings))}

    def says(self, name: str, **arguments) -> str:
        answer = answer_call(self.tools, name, arguments, self.settings, "")
        assert not answer.get("isError"), answer
        return answer["content"][0]["text"]

    def fails(self, name: str, **arguments) -> str:
        answer = answer_call(self.tools, name, arguments, self.settings, "")
        assert answer.get("isError"), answer
        return answer["content"][0]["text"]


@pytest.fixture
def escape(tmp_path: Path) -> Path:
    """A working folder with ways out of it, beside a secret."""
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "work"
    root.mkdir()
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.txt")
    return root


WAYS_OUT = (
    "../secret.txt",
    "link.txt",
    "up/secret.txt",
    "/etc/passwd",
    "a/../../secret.txt",
    "~/x",
    "pipe.txt",
    "a\0b",
)


@pytest.mark.parametrize("path", WAYS_OUT)
def test_no_path_leads_out_of_the_folder(path: str, escape: Path) -> None:
    files, lines = Server(filesystem, escape), Server(terminal_controller, escape)
    assert "secret" not in files.fails("read_text_file", path=path).replace(path, "")
    assert files.fails("read_media_file", path=path)
    assert lines.fails("read_file", path=path)
    if path != "~/x":  # an ordinary, if odd, name in the folder
        assert files.fails("write_file", path=path, content="changed")
        assert lines.fails("write_file", path=path, content="changed", mode="append")
    assert (escape.parent / "secret.txt").read_text() == "secret"


def test_directories_and_moves_stay_below_the_folder(escape: Path) -> None:
    files = Server(filesystem, escape)
    assert files.fails("list_directory", path="up")
    assert files.fails("create_directory", path="up/new")
    assert files.fails("move_file", source="link.txt", destination="up/x")
    assert "secret" not in files.says("directory_tree", path=".")
    assert Server(terminal_controller, escape).fails("change_directory", path="up")
    assert not (escape.parent / "new").exists()


def test_files_are_written_edited_found_and_moved(tmp_path: Path) -> None:
    files = Server(filesystem, tmp_path)
    files.says("write_file", path="a/b.txt", content="one\ntwo\n")
    change = [{"oldText": "two", "newText": "three"}]
    assert "+three" in files.says("edit_file", path="a/b.txt", edits=change, dryRun=True)
    files.says("edit_file", path="a/b.txt", edits=change)
    assert files.says("read_text_file", path=str(tmp_path / "a" / "b.txt"), tail=1) == "three"
    assert files.says("search_files", path=".", pattern="*.txt") == "a/b.txt"
    files.says("move_file", source="a/b.txt", destination="c.txt")
    assert files.says("list_directory", path=".") == "[DIR] a\n[FILE] c.txt"
    assert "found 0 times" in files.fails("edit_file", path="c.txt", edits=change)
    assert json.loads(files.says("get_file_info", path="c.txt"))["size"] == 10


def test_a_data_set_is_read_and_never_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").write_text("given")
    (tmp_path / "work").mkdir()
    files = Server(filesystem, tmp_path / "work", readable=(tmp_path / "data",))
    assert files.says("read_file", path=str(tmp_path / "data" / "x.txt")) == "given"
    assert "outside" in files.fails("write_file", path=str(tmp_path / "data" / "x.txt"), content="mine")


@pytest.mark.parametrize(
    ("expression", "value"), [("2*(3+4)**2/sqrt(16)", "24.5"), ("-7 // 2", "-4"), ("comb(5,2)+max(1,2)", "12")]
)
def test_calculator(expression: str, value: str, tmp_path: Path) -> None:
    assert Server(calculator, tmp_path).says("calculate", expression=expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "(1).__class__",
        "9**9**9**9",
        "factorial(10**9)",
        "2**0.5**-9999999",
        "(" * 900 + "1" + ")" * 900,
        "[x for x in (1,)]",
        "lambda: 1",
        "1/0",
        "'a'*10",
        "",
        "lcm(" + ",".join(f"10**{n}+1" for n in range(200, 250)) + ")",
    ],
)
def test_calculator_computes_nothing_else(expression: str, tmp_path: Path) -> None:
    started = time.process_time()
    assert Server(calculator, tmp_path).fails("calculate", expression=expression)
    assert time.process_time() - started < 2


def test_terminal_bounds_time_output_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key-of-ours")
    shell, quick = Server(terminal, tmp_path, max_bytes=4000), Server(terminal, tmp_path, timeout=1.0)
    assert shell.says("execute_command", command="pwd") == str(tmp_path)
    assert "a-key-of-ours" not in shell.says("execute_command", command="env")
    said = shell.says("execute_command", command="yes | head -c 3000000; sleep 60 & echo $! > pid; exit 3")
    assert "more bytes of output were dropped" in said and "[exit code 3]" in said and len(said) < 4200
    assert "time limit exceeded" in quick.says("execute_command", command="sleep 60", timeout=30)
    child = int((tmp_path / "pid").read_text())
    state, end = Path(f"/proc/{child}/stat"), time.monotonic() + 60
    with suppress(OSError):  # it is gone
        while state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            assert time.monotonic() < end, "it outlived the command that started it"
            time.sleep(0.01)
    assert json.loads(quick.says("get_command_history", count=1, output_format="json"))[0]["exit_code"] is None


def test_terminal_controller_keeps_its_directory(tmp_path: Path) -> None:
    lines = Server(terminal_controller, tmp_path)
    lines.says("write_file", path="d/f.txt", content="a\nb\nc\n")
    lines.says("change_directory", path="d")
    assert lines.says("execute_command", command="ls") == "f.txt"
    lines.says("insert_file_content", path="f.txt", content="x", row=1)
    lines.says("delete_file_content", path="f.txt", row=0)
    lines.says("update_file_content", path="f.txt", content="z", substring="c")
    assert lines.says("read_file", path="f.txt", start_row=0, end_row=1) == "x\nb"
    assert (tmp_path / "d" / "f.txt").read_text() == "x\nb\nz\n"


def test_python_keeps_names_and_loses_them_with_its_time(tmp_path: Path) -> None:
    python, quick = Server(python_code, tmp_path, max_bytes=2000), Server(python_code, tmp_path, timeout=1.0)
    first = json.loads(python.says("e2b_run_code", code_block="x = 20\nprint('hi')\nx + 1"))
    assert first["output"] == "hi\n21\n"
    again = python.says("e2b_run_code", sandbox_id=first["sandbox_id"], code_block="print(x); 1/0")
    assert "20" in again and "ZeroDivisionError" in again
    assert "dropped" in python.says("e2b_run_code", sandbox_id=first["sandbox_id"], code_block="print('y'*10**6)")
    assert "names are lost" in quick.fails("e2b_run_code", code_block="while 1: pass")
    ends = "import os; os._exit(3)"
    assert "names are lost" in python.fails("e2b_run_code", sandbox_id=first["sandbox_id"], code_block=ends)
    assert "there is no sandbox" in python.fails("e2b_run_code", sandbox_id=first["sandbox_id"], code_block="1")
    (tmp_path / "f.txt").write_text("z")
    uploaded = json.loads(python.says("e2b_upload_file", path="f.txt"))
    read = python.says(
        "e2b_run_code", sandbox_id=uploaded["sandbox_id"], code_block=f"open({uploaded['path']!r}).read()"
    )
    assert "'z'" in read


def test_sqlite_reaches_its_own_file_only(tmp_path: Path) -> None:
    database, quick = Server(sqlite, tmp_path), Server(sqlite, tmp_path, timeout=1.0)
    database.says("create_table", query="CREATE TABLE t (a INTEGER, b TEXT)")
    assert database.says("write_query", query="INSERT INTO t VALUES (1, 'x'), (2, 'y')") == "2 rows"
    assert json.loads(database.says("read_query", query="SELECT b FROM t WHERE a = 2")) == [{"b": "y"}]
    assert json.loads(database.says("describe_table", table_name="t"))[0]["name"] == "a"
    for attack in (f"ATTACH '{tmp_path}/o.db' AS o", f"VACUUM INTO '{tmp_path}/o.db'", "PRAGMA journal_mode = WAL"):
        database.fails("write_query", query=attack)
    database.fails("read_query", query="SELECT load_extension('x')")
    database.fails("read_query", query="WITH x AS (SELECT 1) DELETE FROM t RETURNING no")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    assert "exceeded its time limit" in quick.fails("read_query", query=endless)
    database.says("read_query", query="WITH x AS (SELECT 1) SELECT * FROM x")
    assert json.loads(database.says("list_tables")) == ["t"] and not (tmp_path / "o.db").exists()


def test_memory_keeps_a_graph(tmp_path: Path) -> None:
    Server(memory, tmp_path).says(
        "create_entities", entities=[{"name": n, "entityType": "city", "observations": []} for n in ("A", "B")]
    )
    notes = Server(memory, tmp_path)  # another process, the same folder
    notes.says("create_relations", relations=[{"from": "A", "to": "B", "relationType": "near"}])
    notes.says("add_observations", observations=[{"entityName": "A", "contents": ["old town"]}])
    found = json.loads(notes.says("search_nodes", query="OLD"))
    assert [entity["name"] for entity in found["entities"]] == ["A"]
    notes.says("delete_entities", entityNames=["B"])
    assert json.loads(notes.says("read_graph"))["relations"] == []
    assert "no entity" in notes.fails("add_observations", observations=[{"entityName": "C", "contents": []}])


def test_git_commits_and_takes_no_options_as_names(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "repo"], cwd=tmp_path, check=True)
    (tmp_path / "repo" / "f.txt").write_text("one\n")
    repo = Server(git, tmp_path)
    repo.says("git_add", repo_path="repo", files=["f.txt"])
    assert "one" in repo.says("git_diff_staged", repo_path="repo")
    repo.says("git_commit", repo_path="repo", message="First")
    assert "First" in repo.says("git_log", repo_path="repo")
    repo.says("git_create_branch", repo_path="repo", branch_name="side")
    assert "side" in repo.says("git_branch", repo_path="repo")
    for attack in (f"--output={tmp_path}/x", "-h", ""):
        assert "names no branch" in repo.fails("git_diff", repo_path="repo", target=attack)
    assert repo.fails("git_status", repo_path="../")


def test_time_in_zones(tmp_path: Path) -> None:
    times = Server(clock, tmp_path)
    told = json.loads(times.says("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Kolkata"))
    assert told["time_difference"] == "+5.5h" and "T17:30:00" in told["target"]["datetime"]
    assert "no time zone" in times.fails("get_current_time", timezone="../../etc/passwd")
    assert "18:30" in times.fails("convert_time", source_timezone="UTC", time="25:00", target_timezone="UTC")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "zorbia.md").write_text("# Zorbia\nThe capital of Zorbia is Quell. It lies at a [river](Ulm).\n")
    rows = [{"title": "Ulm", "text": "Ulm is a river.", "url": "https://ulm"}, {"id": "x", "text": "Nothing of note"}]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "page.html").write_text("<title>Page</title><script>alert(1)</script><p>Quell is old.</p>")
    return folder


def test_a_corpus_is_searched_and_read(corpus: Path, tmp_path: Path) -> None:
    more = {"corpus": corpus, "cache": tmp_path / "cache"}
    search = Server(corpus_search, tmp_path, **more)
    found = search.says("search", query="What is the capital of Zorbia?", limit=1)
    assert found.startswith("Zorbia: ") and "Quell" in found
    assert "alert" not in search.says("open_document", title="Page")
    indexes = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    wiki = Server(wikipedia, tmp_path, **more)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == indexes  # made once
    assert wiki.says("get_article_summary", title="zorbia", sentences=1).endswith("The capital of Zorbia is Quell.")
    assert json.loads(wiki.says("get_article_links", title="Zorbia")) == ["Ulm"]
    assert "has no history" in wiki.fails("get_article_history", title="Zorbia", date="2024-01-01")
    hits = json.loads(Server(google, tmp_path, **more).says("search_google", query="river Ulm", num_results=1))
    assert hits[0]["url"] == "https://ulm"
    (corpus / "new.txt").write_text("Fresh words")
    assert "Fresh" in Server(corpus_search, tmp_path, **more).says("search", query="fresh")


@pytest.mark.parametrize(
    "query", ['"', 'a"b OR *', "NEAR(a, b)", "title:zorbia", "AND", "zorbia NOT quell", "{body}:x", "-quell", "a'); --"]
)
def test_no_query_is_syntax(query: str, corpus: Path, tmp_path: Path) -> None:
    search = Server(corpus_search, tmp_path, corpus=corpus, cache=tmp_path / "cache")
    answer = answer_call(search.tools, "search", {"query": query}, search.settings, "")
    said = answer["content"][0]["text"]
    assert "syntax" not in said and "Error" not in said
    if "zorbia" in query:
        assert "Zorbia" in said


def test_html_is_text_without_scripts() -> None:
    page = (
        "<html><head><title>The &amp; title</title><style>p{}</style></head><body><script>steal()</script>"
        "<h2>Head</h2><p>Some <a href='/x'>link</a> and <a href='javascript:run()'>trap</a></p>"
        "<ul><li>one<li>two</ul><noscript>no</noscript></body>"
    )
    title, text = readable(page, "https://e.org/a")
    assert title == "The & title" and "## Head" in text and "[link](https://e.org/x)" in text and "- one" in text
    assert not any(word in text for word in ("steal", "javascript", "p{}", "<"))
    started = time.process_time()
    for hostile in ("<a ", "<!--", "<![", "<a x='", "</", "<script>", "&#", "<", "[ ", "<pre> "):
        readable(hostile * 10_000)
    assert time.process_time() - started < 5  # with the standard library's parser: minutes


class Site(BaseHTTPRequestHandler):
    """A site of its own, with a page, a redirect and a body that is larger than it says to be."""

    def do_GET(self) -> None:
        body, kind = b"<title>T</title><p>Hello there</p>", "text/html"
        if self.path == "/inward":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        if self.path == "/large":
            body, kind = bytes(3_000_000), "application/octet-stream"
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer a-key"
        text = f"```python\nprint({asked['model']!r})\n```"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"message": {"content": text}}]}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_web_pages_downloads_and_their_bounds(site: str, tmp_path: Path) -> None:
    inside = {"network": True, "private": True, "max_download": 2_000_000}
    assert Server(readweb, tmp_path, **inside).says("read_url", url=site) == "# T\n\nHello there"
    piece = Server(fetch, tmp_path, **inside).says("fetch", url=site, max_length=5)
    assert piece.startswith("# T\n\n") and "start_index=5" in piece
    assert "answered 404" in Server(readweb, tmp_path, **inside).fails("read_url", url=f"{site}/none")
    downloads = Server(download, tmp_path, **inside)
    downloads.says("download_file", url=site, output_file_path="sub/page.html")
    assert b"Hello" in (tmp_path / "sub" / "page.html").read_bytes()
    assert "already" in downloads.fails("download_file", url=site, output_file_path="sub/page.html")
    assert "more than" in downloads.fails("download_file", url=f"{site}/large", output_file_path="large")
    assert "outside" in downloads.fails("download_file", url=site, output_file_path="../x")
    assert not (tmp_path / "large").exists()
    for address in ("file:///etc/passwd", "ftp://e.org/", f"{site}/inward", "http://", "gopher://x"):
        assert "no address of http" in downloads.fails("download_file", url=address, output_file_path="y")


def test_private_addresses_and_a_closed_network_are_refused(site: str, tmp_path: Path) -> None:
    outside = Server(readweb, tmp_path, network=True)
    for address in (site, site.replace("127.0.0.1", "localhost"), "http://[::1]/", "http://169.254.169.254/latest"):
        assert "no public address" in outside.fails("read_url", url=address)
    assert "network is off" in Server(readweb, tmp_path).fails("read_url", url=site)
    assert all(
        map(is_private_address, ("10.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "fe80::1%eth0", "224.0.0.1", "100.64.0.1"))
    )
    assert not is_private_address("8.8.8.8")


def test_a_second_model_is_asked_where_its_variables_are_set(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Server(intelligence_code, tmp_path)
    assert "CODE_LLM_BASE_URL" in writer.fails("generate_python_code", task_description="x")
    for part, value in (("BASE_URL", site), ("API_KEY", "a-key"), ("MODEL_NAME", "small")):
        monkeypatch.setenv(f"CODE_LLM_{part}", value)
    said = writer.says("generate_python_code", task_description="x", save_to_file_path="made.py")
    assert said == (tmp_path / "made.py").read_text() == "print('small')\n"


def test_wrong_arguments_name_the_argument(tmp_path: Path) -> None:
    shell = Server(terminal, tmp_path)
    assert "timeout" in shell.fails("execute_command", command="true", timeout="soon")
    assert "comand" in shell.fails("execute_command", comand="true")
    assert "there is no tool" in shell.fails("nope")


def test_the_servers_need_no_package_of_ours() -> None:
    """They run in environments of their own, where ajet is not installed."""
    folder = Path(web.__file__).parent
    found = [
        f"{path.name}: {name}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else [])
        + ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        if name.partition(".")[0].startswith("ajet")
    ]
    assert not found


@pytest.mark.parametrize("body", [b"<p>", b"[" * 100_000, b"1" * 5000, b"[" + b"1," * 600_000 + b"1]"])
def test_hostile_json_is_a_tool_error(body: bytes) -> None:
    with pytest.raises(ToolError):
        web.WebReply("https://a.example", 200, Message(), body).json()
