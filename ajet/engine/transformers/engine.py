"""The engine's thread: accepts calls, computes steps, returns tokens.

Invariant: only the engine's thread touches rows and model, between two reads of the inbox; callers see only their own
stream. Every call ends with a finish or an EngineFailure, even if a step fails (only its calls fail) or the engine
closes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from ajet.engine.contract import TokenChunk, TokenRequest, compute_reply_limit
from ajet.engine.draws import draw_uniforms
from ajet.engine.models import read_context_length
from ajet.engine.openmp import end_worker_threads
from ajet.engine.same_model import explain_unseen_masks
from ajet.engine.streams import Outbox, TokenStream
from ajet.engine.transformers.attention import ShapeProbe, computing, copy_weights, make_shared_copy
from ajet.engine.transformers.isolated_decoding import decode_sequences, require_eager_agreement
from ajet.engine.transformers.linear_layers import MixedAdapters, PackedWeights, split_by_adapter
from ajet.engine.transformers.plan import build_step
from ajet.engine.transformers.pool import Row, Shape
from ajet.engine.transformers.rows import InflightRequest, Rows, StepScheduler, copy_to_followers
from ajet.engine.transformers.sampling import DrawnTokens, Sampler
from ajet.engine.verdict_cache import VerdictCache, build_verdict_key
from ajet.schema.call import Ids
from ajet.schema.errors import EngineFailure, UserError

SEND_EVERY = 0.05
"""Seconds between chunks of a running call: short enough to read along, long enough to cost little."""


class TransformersEngine:
    """Samples from a transformers causal language model in this process.

    The tensors of `model` are shared: change them in place under `paused()`, then call `weights_changed`. Layouts made
    for sampling are dropped by a pause.

    Args:
        source_model: if set, `model` is a cast copy of it, refreshed by `weights_changed`.
        step_tokens: maximum prompt tokens per step.
        cache_bytes: maximum memory of cached prefixes; None for an eighth of the free memory.
        adapters: adapters of `model` that requests may select; other requests use none.
        verdicts: stores models that passed the check against their eager forward pass; None always runs the check.

    Raises:
        UserError: the engine cannot sample the model correctly.
    """

    constrains = False

    def __init__(
        self,
        model: Any,
        *,
        version: int = 0,
        max_num_seqs: int = 64,
        max_model_len: int | None = None,
        source_model: Any = None,
        step_tokens: int = 2048,
        cache_bytes: int | None = None,
        adapters: Collection[str] = (),
        verdicts: VerdictCache | None = None,
    ) -> None:
        self.version = version
        self.max_model_len = min(max_model_len or 1 << 30, read_context_length(model))
        self._source, self._model = source_model, make_shared_copy(model)
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._keeps_some_logits = "logits_to_keep" in inspect.signature(_unwrap_model(model).forward).parameters
        self._mixed_adapters = MixedAdapters(self._model, adapters) if adapters else None
        self._packed_weights = PackedWeights(self._model)
        self._shape = shape = self._check_model(verdicts)
        end_worker_threads()  # threads left by the code that loaded the model
        self._rows = Rows(shape, max_rows=2 * max_num_seqs, max_bytes=cache_bytes or _default_cache_bytes(self._device))
        self._scheduler = StepScheduler(self._rows, max_num_seqs=max_num_seqs, step_tokens=step_tokens)
        self._sampler, self._outbox = Sampler(), Outbox()
        self._state_changed = threading.Condition()
        self._new_requests: list[InflightRequest] = []
        self._aborted_requests: list[InflightRequest] = []
        self._is_stepping = self._is_closing = False
        self._pause_count = 0
        self._failure = ""
        self._chunks_sent_at = 0.0
        self.counts = {"steps": 0, "prompt_tokens": 0, "computed_tokens": 0, "sampled_tokens": 0}
        """Counts since the start. `computed_tokens` counts replies and prompts without shared prefixes."""
        self._thread = threading.Thread(target=self._run_loop, name="ajet-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply. Closing the iterator early frees the row before the next step.

        Raises:
            EngineFailure: the engine is closed, lacks the adapter, or a step failed.
        """
        if request.adapter is not None and (
            self._mixed_adapters is None or request.adapter not in self._mixed_adapters.names
        ):
            raise EngineFailure(f"the engine has no adapter {request.adapter}", retryable=False)
        call = InflightRequest(
            request,
            TokenStream(asyncio.get_running_loop()),
            compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary),
        )
        with self._state_changed:
            if self._is_closing:
                raise EngineFailure(self._failure or "the engine is closed", retryable=False)
            self._new_requests.append(call)
            self._state_changed.notify_all()
        finished = False
        try:
            while not finished:
                chunk = await call.stream.next()
                finished = chunk.finish is not None
                yield chunk
        finally:
            if not finished:
                with self._state_changed:
                    self._aborted_requests.append(call)
                    self._state_changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no forward pass runs and calls wait, so the caller may use the cores or change weights.

        Cached prefixes and packed weights are released, so their memory is free within the block.
        """
        with self._state_changed:
            self._pause_count += 1
            self._state_changed.wait_for(lambda: not self._is_stepping)
            self._packed_weights.forget()
            if not self._rows.active:
                self._rows.forget()
        try:
            yield
        finally:
            end_worker_threads()
            with self._state_changed:
                self._pause_count -= 1
                self._state_changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no new step begins and caches stay, so calls submitted inside are computed together."""
        with self._state_changed:
            self._pause_count += 1
        try:
            yield
        finally:
            with self._state_changed:
                self._pause_count -= 1
                self._state_changed.notify_all()

    def weights_changed(self, version: int) -> None:
        """Announce that the tensors now hold policy `version`. Running calls go on with recomputed keys and values.

        Raises:
            ValueError: `version` is older than the current one.
        """
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        with self.paused(), self._state_changed:
            self._flush_chunks()
            if self._source is not None:
                copy_weights(self._source, self._model)
            self._rows.forget()
            self.version = version

    def close(self) -> None:
        """End the thread. Running calls fail with EngineFailure. Idempotent."""
        with self._state_changed:
            self._is_closing = True
            self._state_changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._packed_weights.close()
        if self._mixed_adapters is not None:
            self._mixed_adapters.close()

    def greedy(self, prompt_ids: Ids, count: int, adapter: str | None = None) -> tuple[list[int], list[float]]:
        """Return a greedy continuation of `count` tokens and each token's log-probability at temperature 1.

        Runs between two steps; caches, counts and random numbers of other calls stay unchanged.
        """
        ids: list[int] = []
        logprobs: list[float] = []

        def most_likely(_: int, logits_BV: Tensor) -> list[int]:
            """Return the most likely token in a list, and record it with its log-probability."""
            table = torch.log_softmax(logits_BV[0].float(), -1)
            ids.append(int(table.argmax()))
            logprobs.append(float(table[ids[-1]]))
            return ids[-1:]

        with self._hold_steps():
            decode_sequences(self._compute_logits, self._shape, [prompt_ids], count, most_likely, adapter=adapter)
        return ids, logprobs

    @contextmanager
    def _hold_steps(self) -> Iterator[None]:
        """Within the block, only the caller runs forward passes."""
        with self.held():
            with self._state_changed:
                self._state_changed.wait_for(lambda: not self._is_stepping)
            try:
                yield
            finally:
                end_worker_threads()

    def _check_model(self, verdicts: VerdictCache | None) -> Shape:
        """Check that the engine computes the model correctly, and return the shape of keys and values.

        Args:
            verdicts: models that passed the comparison with their eager forward pass; this comparison is then skipped.

        Raises:
            UserError: the engine cannot sample the model.
        """
        key = build_verdict_key(self._model, code=[Path(__file__).parent]) if verdicts is not None else ""
        probe = ShapeProbe()
        ids = torch.zeros(1, 2, dtype=torch.long, device=self._device)
        try:
            # The logits of these two tokens are not needed: attention records its shapes and windows in `probe`.
            self._compute_logits(probe, ids, torch.arange(2, device=self._device)[None], ids[0, :1])
            reason = explain_unseen_masks(self._model, probe.windows)  # a mask that the engine would not apply
        except TypeError as error:  # an attention keyword that the engine does not compute
            reason = str(error)
        if reason:
            raise UserError(
                f"The transformers engine cannot sample {type(_unwrap_model(self._model)).__name__}: {reason}.",
                where="model.path",
                do="set rollout.engine: vllm, or use a model that docs/models.md lists",
            )
        shape = probe.shape()
        if self._mixed_adapters is not None:
            last_index = torch.ones(1, dtype=torch.long, device=self._device)
            # Raises UserError if a layer cannot apply an adapter to the last token alone.
            with self._mixed_adapters.computing([(name, last_index) for name in sorted(self._mixed_adapters.names)]):
                self._compute_logits(ShapeProbe(), ids, torch.arange(2, device=self._device)[None], ids[0, :1])
        if verdicts is None or not verdicts.has(key):
            require_eager_agreement(self._model, self._compute_logits, shape, self._vocabulary)
            if verdicts is not None:
                verdicts.add(key)
        return shape

    def _compute_logits(self, step: Any, ids: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """Return logits [K, V] of the tokens `wanted` [K] in a packed sequence [1, N]."""
        keep = {"logits_to_keep": wanted} if self._keeps_some_logits else {}
        with torch.inference_mode(), computing(step), self._use_adapters(step):
            out = self._model(input_ids=ids, position_ids=positions, use_cache=False, **keep)
            return out.logits[0] if keep else out.logits[0, wanted]

    def _use_adapters(self, step: Any) -> AbstractContextManager[None]:
        """Return a context manager within which each token of `step` uses the adapter of its call."""
        if self._mixed_adapters is None or isinstance(step, ShapeProbe):
            return nullcontext()
        return self._mixed_adapters.computing(split_by_adapter(step.owners, self._device))

    def _run_loop(self) -> None:
        """Run steps until the engine closes or stops by an error, then fail all open calls."""
        try:
            while self._run_turn():
                pass
        finally:
            with self._state_changed:
                self._is_closing, self._is_stepping = True, False
                self._fail_all(self._failure or "the engine was closed")
                self._state_changed.notify_all()

    def _run_turn(self) -> bool:
        """Wait for work and run one step. Return False if the engine is closing."""
        with self._state_changed:
            if not self._has_work():
                end_worker_threads()
                self._state_changed.wait_for(self._has_work)
            if self._is_closing:
                return False
            self._take_in()
            self._is_stepping = True
        try:
            self._run_step()
        except RuntimeError as error:  # all torch errors, including out of memory
            logger.warning("the transformers engine failed while it decoded a batch: {}", error)
            with self._state_changed:
                self._fail_all(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self._failure = f"the transformers engine stopped: {type(error).__name__}: {error}"
            raise
        finally:
            with self._state_changed:
                self._is_stepping = False
                self._state_changed.notify_all()
        return True

    def _has_work(self) -> bool:
        """Return True if the engine is closing, or if it has calls and is not paused."""
        return self._is_closing or (
            not self._pause_count and bool(self._new_requests or self._scheduler.waiting or self._has_active_rows())
        )

    def _has_active_rows(self) -> bool:
        return any(pool.active for pool in self._rows.pools.values())

    def _take_in(self) -> None:
        """Take over new calls and drop aborted ones, between two steps. The lock must be held."""
        aborted = {id(call) for call in self._aborted_requests}
        self._aborted_requests.clear()
        self._scheduler.waiting.extend(self._new_requests)
        self._new_requests.clear()
        if aborted:
            remaining = [call for call in self._scheduler.waiting if id(call) not in aborted]
            self._scheduler.waiting.clear()
            self._scheduler.waiting.extend(remaining)
            self._rows.retire([row for row in self._rows.active if id(row.call) in aborted])

    def _run_step(self) -> None:
        """Run one forward pass over the planned tokens of all rows, and draw a token for each row that is due.

        A follower has the same prompt as its leader, so it draws from the leader's logits.
        """
        pieces, followers = self._scheduler.plan()
        if not pieces:
            return
        step = build_step(pieces, self._device)
        # Rows may share a token of the step; its logits are computed once, as one line of `logits`.
        line_of_index: dict[int, int] = {}
        for _, index in step.sampled:
            line_of_index.setdefault(index, len(line_of_index))
        line_of_row = {id(row): line_of_index[index] for row, index in step.sampled}
        drawing_rows = [row for row, _ in step.sampled] + [follower for follower, _ in followers]
        lines = [line_of_row[id(row)] for row, _ in step.sampled] + [line_of_row[id(leader)] for _, leader in followers]
        sampled_indices = torch.tensor(list(line_of_index), dtype=torch.long, device=self._device)
        logits = self._compute_logits(step, step.ids, step.positions, sampled_indices)
        for row in step.rows:
            row.computed = row.planned
        copy_to_followers(followers)
        self.counts["steps"] += 1
        self.counts["computed_tokens"] += step.ids.shape[1]
        if drawing_rows:
            if lines != list(range(len(line_of_index))):
                logits = logits[torch.tensor(lines, device=self._device)]
            self._deliver_tokens(drawing_rows, self._draw_tokens(drawing_rows, logits))

    def _draw_tokens(self, rows: list[Row], logits_BV: Tensor) -> DrawnTokens:
        """Draw the next token of each row from its logits, with the random number of its call and position."""
        calls: list[InflightRequest] = [row.call for row in rows]
        streams = np.array([call.draws for call in calls], dtype=np.uint64)
        positions = np.array([call.drawn for call in calls], dtype=np.uint64)
        with torch.inference_mode():
            return self._sampler.draw(
                logits_BV, [call.request.sampling for call in calls], draw_uniforms(streams, positions)
            )

    def _deliver_tokens(self, rows: list[Row], drawn_tokens: DrawnTokens) -> None:
        """Append each row's drawn token, retire rows that have ended, and send the chunks that are due."""
        finished: list[Row] = []
        for index, row in enumerate(rows):
            call: InflightRequest = row.call
            token = drawn_tokens.ids[index]
            call.ids.append(token)
            call.logprobs.append(drawn_tokens.logprobs[index])
            call.logprobs_unit.append(drawn_tokens.logprobs_unit[index])
            if call.request.sampling.top_logprobs:
                call.top.append(drawn_tokens.top[index])
            call.drawn += 1
            self.counts["sampled_tokens"] += 1
            if call.drawn == 1:
                self.counts["prompt_tokens"] += len(call.request.prompt_ids)
            if token in call.request.sampling.stop_ids or call.drawn == call.limit:
                self._queue_chunk(call, "stop" if token in call.request.sampling.stop_ids else "length")
                finished.append(row)
                continue
            if row.known == row.pool.capacity:
                self._rows.grow(row)
            row.append(token)
        if finished:
            self._rows.retire(finished)
        if time.monotonic() - self._chunks_sent_at > SEND_EVERY:
            self._flush_chunks()
        self._outbox.send()

    def _flush_chunks(self) -> None:
        """Send the pending tokens of running calls."""
        self._chunks_sent_at = time.monotonic()
        for row in self._rows.active:
            if row.call is not None and row.call.ids:
                self._queue_chunk(row.call, None)
        self._outbox.send()

    def _queue_chunk(self, call: InflightRequest, finish: Literal["stop", "length"] | None) -> None:
        """Queue the pending tokens of a call as a chunk for the next send. `finish` is None if the call continues."""
        chunk = TokenChunk(call.ids, call.logprobs, call.logprobs_unit, self.version, finish, call.top)
        call.ids = []
        call.logprobs = []
        call.logprobs_unit = []
        call.top = []
        self._outbox.add(call.stream, chunk)

    def _fail_all(self, why: str) -> None:
        """Fail all running and waiting calls and drop all rows. The lock must be held."""
        self._take_in()
        rows = self._rows.active
        for call in [*(row.call for row in rows), *self._scheduler.waiting]:
            self._outbox.add(call.stream, EngineFailure(why))
        self._scheduler.waiting.clear()
        self._rows.pools.clear()
        self._outbox.send()


def _unwrap_model(model: Any) -> Any:
    """Return the transformers model inside an adapter wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _default_cache_bytes(device: torch.device) -> int:
    """Return an eighth of the free memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 8
    import psutil

    return int(psutil.virtual_memory().available) // 8
