"""Requests to a model behind an OpenAI-compatible address from the environment.

Invariants: a service NAME uses NAME_LLM_BASE_URL, NAME_LLM_API_KEY and NAME_LLM_MODEL_NAME. If a variable is missing,
no request is sent and the answer names the variable. The key goes to the address only and into no answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from .settings import Settings
from .tool import ToolError
from .web import WebReply, request

PARTS = ("BASE_URL", "API_KEY", "MODEL_NAME")


def variables(service: str) -> tuple[str, ...]:
    """Return the names of the three environment variables that describe a service's model."""
    return tuple(f"{service}_LLM_{suffix}" for suffix in PARTS)


class Model:
    """Sends requests to one service's model."""

    def __init__(self, service: str, settings: Settings) -> None:
        self.service = service
        # the address comes from the server's operator, so private addresses are allowed
        self.settings = replace(settings, network=True, private=True)

    def chat(self, messages: Sequence[Mapping[str, Any]], temperature: float) -> str:
        """Send chat messages to the service's model and return the text of its reply. Raises ToolError."""
        _, _, model = self._require_variables()
        body = json.dumps({"model": model, "messages": list(messages), "temperature": temperature})
        answer = self._send_request("chat/completions", body.encode(), "application/json").json()
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise ToolError("the model answered without a message") from None

    def transcribe(self, name: str, audio: bytes, form: str) -> str:
        """Return the transcript of a recording in the format `form` (text, json, srt, vtt, verbose_json)."""
        _, _, model = self._require_variables()
        boundary = uuid4().hex
        fields = {"model": model, "response_format": form}
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in fields.items()
        ]
        safe_name = "".join(character for character in name if character.isalnum() or character in "._-")
        parts += [
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{safe_name}"\r\n'.encode(),
            b"Content-Type: application/octet-stream\r\n\r\n" + audio + f"\r\n--{boundary}--\r\n".encode(),
        ]
        content_type = f"multipart/form-data; boundary={boundary}"
        return self._send_request("audio/transcriptions", b"".join(parts), content_type).text()

    def _require_variables(self) -> tuple[str, str, str]:
        """Return (address, key, model name) of the service. Raises ToolError that names a missing variable."""
        values = [os.environ.get(name, "") for name in variables(self.service)]
        missing = [name for name, value in zip(variables(self.service), values, strict=True) if not value]
        if missing:
            raise ToolError(f"this tool is off: {', '.join(missing)} is not set")
        return values[0].rstrip("/"), values[1], values[2]

    def _send_request(self, path: str, body: bytes, kind: str) -> WebReply:
        """POST a body to a path of the service, with its key. Raises ToolError."""
        base, key, _ = self._require_variables()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": kind}
        return request("POST", f"{base}/{path}", self.settings, body=body, headers=headers)
