"""Tool server `download`: saves a web file into the working folder.

Every request goes through `web`, which limits bytes and seconds and refuses private addresses. A
download is written completely or not at all.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from .tool import FilePath, Shape, ToolError
from .tool_server import ToolServer
from .web import get


class Downloads(ToolServer):
    """Downloads files into a working folder."""

    def download_file(
        self,
        url: str,
        output_file_path: FilePath,
        overwrite: bool = False,
        timeout: Annotated[int, Field(description="seconds", ge=1)] = 60,
        output_format: Shape = "text",
    ) -> str:
        """Download a file into the working folder."""
        self.folder.parts(output_file_path, write=True)
        reply = get(url, self.settings, limit=self.settings.max_download, timeout=timeout)
        if reply.cut:
            raise ToolError(f"the file has more than {self.settings.max_download} bytes: nothing was written")
        self.folder.write(output_file_path, reply.body, new=not overwrite)
        about = {"file": output_file_path, "bytes": len(reply.body), "type": reply.kind, "url": reply.url}
        if output_format == "json":
            return json.dumps(about)
        return f"{len(reply.body)} bytes ({reply.kind}) are in {output_file_path}"

    def get_download_capabilities(self) -> dict[str, Any]:
        """Kinds of addresses, and limits of a download."""
        return {
            "addresses": ["http", "https"],
            "most_bytes": self.settings.max_download,
            "most_seconds": self.settings.timeout,
            "private_addresses": self.settings.private,
        }


tools = Downloads.tools
