"""Files of the working folder, with the tools of the reference file server.

Invariant: every path goes through `Folder`.
"""

from __future__ import annotations

import base64
import fnmatch
import mimetypes
import os
import time
from collections.abc import Iterator
from difflib import unified_diff
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from .folder import Entry
from .tool import Answer, FilePath, Image, ToolError
from .tool_server import ToolServer

MAX_TEXT = 10_000_000
"""Maximum bytes of a file read or edited as text."""
MAX_FOUND = 5_000
"""Maximum names answered by a search or a tree."""
DirectoryPath = Annotated[str, Field(description="path of a directory; . is the working folder")]


class Edit(TypedDict):
    """One replacement in a text."""

    oldText: str
    newText: str
    all: NotRequired[bool]


class Files(ToolServer):
    """Reads and writes files below the working folder."""

    def read_file(self, path: FilePath) -> str:
        """Content of a text file, as read_text_file."""
        return self._read_text(path)

    def read_text_file(
        self,
        path: FilePath,
        head: Annotated[int, Field(description="only the first lines; 0: all", ge=0)] = 0,
        tail: Annotated[int, Field(description="only the last lines; 0: all", ge=0)] = 0,
    ) -> str:
        """Content of a text file, decoded."""
        if head and tail:
            raise ToolError("head or tail, not both")
        text = self._read_text(path)
        if not head and not tail:
            return text
        lines = text.splitlines()
        return "\n".join(lines[:head] if head else lines[-tail:])

    def read_media_file(self, path: FilePath) -> Answer:
        """A picture, or another file's bytes in base64."""
        data = self.folder.read_bytes(path, MAX_TEXT)
        mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
        return (
            Image(data, mime) if mime.startswith("image/") else {"mime": mime, "data": base64.b64encode(data).decode()}
        )

    def read_multiple_files(self, paths: list[str]) -> str:
        """Content of several text files; unreadable files are reported."""
        parts = []
        for path in paths:
            try:
                parts.append(f"{path}:\n{self._read_text(path)}")
            except ToolError as error:
                parts.append(f"{path}: {error}")
        return "\n---\n".join(parts)

    def write_file(self, path: FilePath, content: str) -> str:
        """Write a complete file; an existing file is replaced."""
        self.folder.write(path, content.encode("utf-8", "replace"))
        return f"{path} is written"

    def edit_file(self, path: FilePath, edits: list[Edit], dryRun: bool = False) -> str:
        """Replace texts in a file, each found once, or everywhere with `all`; answers the difference."""
        old_text = new_text = self._read_text(path)
        for edit in edits:
            occurrences = new_text.count(edit["oldText"]) if edit["oldText"] else 0
            if not occurrences or (occurrences > 1 and not edit.get("all")):
                raise ToolError(f"found {occurrences} times: {edit['oldText'][:200]!r}")
            new_text = new_text.replace(edit["oldText"], edit["newText"])
        if not dryRun:
            self.folder.write(path, new_text.encode("utf-8", "replace"))
        return "\n".join(unified_diff(old_text.splitlines(), new_text.splitlines(), path, path, lineterm=""))

    def create_directory(self, path: DirectoryPath) -> str:
        """Make a directory, with those above it."""
        with self.folder.directory(path, write=True, create=True):
            return f"{path} is there"

    def list_directory(self, path: DirectoryPath) -> str:
        """Names in a directory, files and folders."""
        return "\n".join(_format_entry(entry) for entry in self.folder.entries(path)) or "[empty]"

    def list_directory_with_sizes(self, path: DirectoryPath, sortBy: Literal["name", "size"] = "name") -> str:
        """Names in a directory, with sizes in bytes."""
        entries = self.folder.entries(path)
        if sortBy == "size":
            entries.sort(key=lambda entry: -entry.size)
        return "\n".join(f"{_format_entry(entry)} {entry.size}" for entry in entries) or "[empty]"

    def directory_tree(self, path: DirectoryPath, excludePatterns: list[str] | None = None) -> str:
        """All paths below a directory, one per line."""
        return self._list_matches(path, "*", excludePatterns or [])

    def move_file(self, source: FilePath, destination: FilePath) -> str:
        """Move or rename a file or a directory; nothing is replaced."""
        with (
            self.folder.parent(source) as (source_folder, source_name),
            self.folder.parent(destination) as (folder, name),
        ):
            if name in os.listdir(folder):
                raise ToolError(f"{destination} is there already")
            try:
                os.rename(source_name, name, src_dir_fd=source_folder, dst_dir_fd=folder)
            except FileNotFoundError:
                raise ToolError(f"there is no {source}") from None
        return f"{source} is now {destination}"

    def search_files(
        self,
        path: DirectoryPath,
        pattern: Annotated[str, Field(description="of the name or path, as *.txt")],
        excludePatterns: list[str] | None = None,
    ) -> str:
        """Paths below a directory that match a pattern."""
        return self._list_matches(path, pattern, excludePatterns or [])

    def get_file_info(self, path: FilePath) -> dict[str, Any]:
        """Kind, size, time and permissions of a file."""
        entry = self.folder.entry(path)
        modified = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.modified))
        return {"kind": entry.kind, "size": entry.size, "modified": modified, "mode": f"{entry.mode & 0o777:03o}"}

    def list_allowed_directories(self) -> list[str]:
        """The readable folders; the first is also writable."""
        return [str(root) for root in (self.folder.root, *self.folder.readable)]

    def _read_text(self, path: str) -> str:
        """Return a file's text; invalid UTF-8 is replaced. Raises ToolError for a file larger than MAX_TEXT."""
        return self.folder.read_bytes(path, MAX_TEXT).decode("utf-8", "replace")

    def _list_matches(self, path: str, pattern: str, excluded: list[str]) -> str:
        """Return the paths below a directory that match a pattern, one per line, at most MAX_FOUND."""
        matches: list[str] = []
        for relative_path, entry in self._walk_entries(path, "", excluded):
            if _matches_any(relative_path, [pattern]):
                if len(matches) == MAX_FOUND:
                    matches.append(f"[more than {MAX_FOUND}: the rest is left out]")
                    break
                matches.append(f"{relative_path}/" if entry.kind == "directory" else relative_path)
        return "\n".join(matches) or "[none]"

    def _walk_entries(self, path: str, below: str, excluded: list[str], depth: int = 0) -> Iterator[tuple[str, Entry]]:
        """Yield (path relative to `path`, entry) of everything below a directory, at most 50 levels deep.

        Args:
            below: the relative path at which the walk continues.
            excluded: patterns; a matching directory is not entered.
        """
        for entry in self.folder.entries(os.path.join(path, below)):
            name = os.path.join(below, entry.name)
            if _matches_any(name, excluded):
                continue
            yield name, entry
            if entry.kind == "directory" and depth < 50:
                yield from self._walk_entries(path, name, excluded, depth + 1)


tools = Files.tools


def _format_entry(entry: Entry) -> str:
    """Return a name with its kind in brackets, as the reference file server does."""
    kind_label = {"directory": "[DIR]", "file": "[FILE]", "link": "[LINK]"}.get(entry.kind, "[OTHER]")
    return f"{kind_label} {entry.name}"


def _matches_any(path: str, patterns: list[str]) -> bool:
    """Return True if the path, or its last component, matches one of the patterns."""
    name = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(name, pattern) for pattern in patterns)
