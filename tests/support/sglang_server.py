"""A server that speaks SGLang's `/generate` as 0.5.23 does, with tiny-tools behind it: real logits, real draws.

What it says is what a real server of that version says, since the same tests run against both
(`ajet_vllm.tests.real_sglang`): events that bear all of the reply so far (of the first token, and then as often as they
are asked for), a logprob of the distribution at its temperature and before any cut, a refusal within the stream it has
begun, replies broken off as its weights get a name, a load that names the weights. `AJET_TEST_SGLANG=URL` names a real
one with tiny-tools to be asked in its place."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.support.killable import KillableServer

CONTEXT = 512
BEGUN = "One and two"
KEPT = 6
"""Of its context, for itself."""


@contextmanager
def sglang_server() -> Iterator[str]:
    """Its URL, `http://HOST:PORT`."""
    named = os.environ.get("AJET_TEST_SGLANG")
    if named:
        yield named
        return
    import uvicorn

    app = SglangApp()
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app.routes(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        app.engine.close()


class SglangProcess(KillableServer):
    """The same in a process of its own, which may be killed and started again at its address. `held`: streamed replies
    say `BEGUN` and then stand still, so that a kill falls into their middle."""

    held = False

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """See KillableServer."""
        return [sys.executable, "-m", "tests.support.sglang_server", str(self.port), *(["held"] if self.held else [])]

    def until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        """See KillableServer."""
        until = time.monotonic() + 300
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/v1/models", timeout=60).status_code == 200:
                    return
            assert process.poll() is None and time.monotonic() < until, "it does not begin to answer"
            time.sleep(0.05)


def main(port: int, *, held: bool) -> None:
    """In a process of its own, until it is ended."""
    import torch
    import uvicorn

    torch.set_num_threads(1)
    uvicorn.run(SglangApp(held=held).routes(), port=port, log_level="error", lifespan="off")


class SglangApp:
    """Its routes, and what is behind them."""

    def __init__(self, *, held: bool = False) -> None:
        import torch

        from ajet.engine.model_source import locate_model
        from ajet.engine.models import load_model, load_tokenizer
        from ajet.engine.transformers import TransformersEngine

        self._model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
        self._scorer = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
        self.engine = TransformersEngine(self._model, max_num_seqs=16)
        self.name, self._draws, self._aborts = "default", 0, 0
        self._begun = load_tokenizer(locate_model("embedded:tiny-tools")).encode(BEGUN) if held else []

    def routes(self) -> Any:
        """The ASGI app."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/server_info", self._server_info),
                Route("/model_info", self._model_info),
                Route("/generate", self._generate, methods=["POST"]),
                Route("/update_weight_version", self._rename, methods=["POST"]),
                Route("/update_weights_from_disk", self._load, methods=["POST"]),
            ]
        )

    async def _models(self, request: Any) -> Any:
        return _json({"data": [{"id": "tiny", "owned_by": "sglang", "max_model_len": CONTEXT}]})

    async def _server_info(self, request: Any) -> Any:
        return _json({"version": "0.5.23", "max_req_input_len": CONTEXT - KEPT})

    async def _model_info(self, request: Any) -> Any:
        return _json({"model_path": "tiny", "weight_version": self.name})

    async def _rename(self, request: Any) -> Any:
        body = await request.json()
        self._aborts += body.get("abort_all_requests", True)
        self.name = body["new_version"]
        return _json({"success": True, "new_version": self.name})

    async def _load(self, request: Any) -> Any:
        body = await request.json()
        try:
            await asyncio.to_thread(self._loaded, Path(body["model_path"]))
        except (OSError, ValueError) as problem:
            return _json({"success": False, "message": str(problem)}, 400)
        self.name = body["weight_version"]
        return _json({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    def _loaded(self, folder: Path) -> None:
        import torch

        from ajet.engine.saved_tensors import open_saved_tensors

        parameters = [dict(model.named_parameters()) for model in (self._model, self._scorer)]
        with open_saved_tensors(folder, None) as tensors, self.engine.paused(), torch.no_grad():
            for name, tensor in tensors:
                for each in parameters:
                    if name in each:
                        each[name].copy_(tensor)
            self.engine.weights_changed(self.engine.version + 1)

    async def _generate(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        body = await request.json()
        ids, params = body["input_ids"], body["sampling_params"]
        if len(ids) >= CONTEXT - KEPT:
            text = f"Input length ({len(ids)} tokens) exceeds the maximum allowed length ({CONTEXT - KEPT} tokens)."
            if not body["stream"]:
                return _json({"error": {"message": text}}, 400)
            error = {"message": text, "type": "invalid_request_error", "code": 400, "retryable": False}
            refusal = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
            return StreamingResponse(iter([refusal]), media_type="text/event-stream")
        if params["max_new_tokens"] == 0:
            return _json(_event([], [], None, {"input_token_logprobs": self._scores(ids, body["logprob_start_len"])}))
        if not body["stream"]:
            last: dict[str, Any] = {}
            async for event in self._events(body):
                last = event
            return _json(last)

        async def lines() -> AsyncIterator[str]:
            if self._begun:
                rows = [[-1.0, token, None] for token in self._begun]
                yield f"data: {json.dumps(_event(self._begun, rows, None, {'weight_version': self.name}))}\n\n"
                await asyncio.Event().wait()  # for ever
            async for event in self._events(body):
                yield f"data: {json.dumps(event)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        from ajet.engine.contract import DrawKey, Sampling, TokenRequest

        params = body["sampling_params"]
        stops = () if params["ignore_eos"] else (2, *params["stop_token_ids"])
        limit = min(params["max_new_tokens"], CONTEXT - 1 - len(body["input_ids"]))
        sampling = Sampling(limit, params["temperature"], 1.0, -1, stops, top_logprobs=body["top_logprobs_num"])
        self._draws += 1
        aborts = self._aborts
        asked = TokenRequest(np.array(body["input_ids"], np.int32), sampling, DrawKey(0, self._draws, 0, 0))
        known: list[int] = []
        rows: list[list[Any]] = []
        top: list[Any] = []
        async for chunk in self.engine.generate(asked):
            said = chunk.logprobs_unit if params["temperature"] == 0.0 else chunk.logprobs
            known += chunk.ids
            rows += [[logprob, token, None] for logprob, token in zip(said, chunk.ids, strict=True)]
            top += [[[logprob, token, None] for token, logprob in each] for each in chunk.top]
            ended = chunk.finish and (
                {"type": "stop", "matched": known[-1]}
                if chunk.finish == "stop"
                else {"type": "length", "length": limit}
            )
            if aborts != self._aborts:
                ended = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                yield _event(list(known), list(rows), ended, {"weight_version": self.name})
                return
            if ended or len(known) % params["stream_interval"] == 1:
                more = {"output_top_logprobs": list(top)} if body["top_logprobs_num"] else {}
                yield _event(list(known), list(rows), ended, {"weight_version": self.name, **more})

    def _scores(self, ids: list[int], first: int) -> list[list[Any]]:
        import torch

        with torch.no_grad():
            said = self._scorer(torch.tensor([ids])).logits[0].log_softmax(-1)
        rows = [[None, ids[first], None]]
        return rows + [[float(said[k - 1, ids[k]]), ids[k], None] for k in range(first + 1, len(ids))]


def _event(ids: list[int], rows: list[list[Any]], ended: Any, more: dict[str, Any]) -> dict[str, Any]:
    told = {"finish_reason": ended, "completion_tokens": len(ids), "output_token_logprobs": rows, **more}
    return {"text": "", "output_ids": ids, "meta_info": told}


def _json(content: dict[str, Any], status: int = 200) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse(content, status)


if __name__ == "__main__":
    main(int(sys.argv[1]), held="held" in sys.argv)
