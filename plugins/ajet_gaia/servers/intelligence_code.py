"""Tool server that lets a second model write Python code."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from .folder import Folder
from .intelligence import ask_model
from .tool_server import ToolServer

_BLOCK = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
"""Matches a fenced block. `ajet.schema.fenced` is not available, since the server runs without ajet."""
Style = Literal["minimal", "documented", "verbose"]


class CodeWriter(ToolServer):
    """Writes code for a described task."""

    def generate_python_code(
        self,
        task_description: str,
        requirements: str = "",
        context: str = "",
        temperature: Annotated[float, Field(ge=0, le=2)] = 0.1,
        code_style: Style = "documented",
        save_to_file_path: Annotated[str, Field(description="in the working folder; empty: it is not saved")] = "",
    ) -> str:
        """Have a model write Python code for a task."""
        role = f"Write Python code for the task, in {code_style} style. Answer with one code block and nothing else."
        parts = {"Task": task_description, "Requirements": requirements, "Context": context}
        reply = ask_model("CODE", self.settings, role, parts, temperature)
        blocks = _BLOCK.findall(reply.replace("\r\n", "\n"))
        code = next((text for _, language, text in blocks if language.lower() in ("", "py", "python")), reply)
        if save_to_file_path:
            Folder(self.settings).write(save_to_file_path, code.encode())
        return code

    def get_reasoning_capabilities(self) -> dict[str, Any]:
        """Available styles of the code."""
        return {"code_style": ["minimal", "documented", "verbose"]}


tools = CodeWriter.tools
