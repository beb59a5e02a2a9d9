"""The worker's end of the channel: requests and replies of attempts, and the attempts' output.

Invariants: a thread reads all the time and never writes: neither side waits for the other to read. A reply goes to the
oldest open request of the attempt. Only the worker process writes: a process forked by user code has no channel. After
an attempt's end no request is sent for the attempt.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, make_error
from ajet.rollout.isolation.channel import Message, MessageChannel, encode_value
from ajet.rollout.isolation.messages import decode_failure, decode_reply, encode_request

NO_ATTEMPT = 0
"""Attempt id of output that belongs to no attempt."""
CHATTY_CHARS = 8 * OUTPUT_CHARS
"""Characters after which an attempt's output is sent in parts of the bound's length, no longer line by line."""


class OutputTail:
    """Keeps the last characters of unsent output, up to a limit.

    It is thread-safe without a lock, because printing must never block.
    """

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._buffered_chars = self._removed_chars = self._sent_chars = 0

    def add(self, text: str) -> bool:
        """Add text. Return True if the tail should be sent now."""
        self._parts.append(text)
        held_characters = self._buffered_chars = self._buffered_chars + len(text)
        if held_characters > 2 * OUTPUT_CHARS:
            self._parts.appendleft(self._join_parts())
        return held_characters >= OUTPUT_CHARS or ("\n" in text and self._sent_chars < CHATTY_CHARS)

    def take(self) -> tuple[str, int]:
        """Remove and return the text added since the last call. Also return how many characters before it were dropped.

        Only the last OUTPUT_CHARS characters are kept.
        """
        text = self._join_parts()
        removed, self._removed_chars, self._buffered_chars = self._removed_chars, 0, 0
        self._sent_chars += len(text) + removed
        return text, removed

    def _join_parts(self) -> str:
        """Return the last OUTPUT_CHARS characters of the text, and count the dropped ones. The text may be added to
        meanwhile.
        """
        parts = []
        with suppress(IndexError):
            while True:
                parts.append(self._parts.popleft())
        joined = "".join(parts)
        end = joined[-OUTPUT_CHARS:]
        self._removed_chars += len(joined) - len(end)
        self._buffered_chars = len(end)
        return end


class OutputStream:
    """Output of an attempt, or of no attempt, that waits to be sent to the rollout."""

    def __init__(self, attempt: int, kind: str) -> None:
        """Start an empty stream. `kind` is the kind of the messages: `printed` or `warning`."""
        self.attempt = attempt
        self.kind = kind
        self.tail = OutputTail()
        self.is_queued = False


class WorkerChannel:
    """The channel of this worker. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        """Wrap the socket with this descriptor. Processes that user code starts or forks get no access to it."""
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self.channel = MessageChannel(descriptor, descriptor)
        self.sending = threading.Lock()
        self._waiting_lock = threading.Lock()
        """Guards `_open_requests`. Never held during a send, because sending may take long."""
        self._open_requests: dict[int, deque[Future[Message]]] = {}
        """Attempt number -> its unanswered requests, the oldest first."""
        self._output: deque[OutputStream] = deque()
        """Streams with unsent output, each at most once."""
        self._orders: SimpleQueue[Message | Exception] = SimpleQueue()
        self.owner = os.getpid()
        os.register_at_fork(after_in_child=self._disconnect_fork)

    def receive(self) -> Message:
        """Wait for the next message. Call this only before `start_reading`."""
        return self.channel.receive()

    def start_reading(self) -> None:
        """Start the thread that reads messages."""
        threading.Thread(target=self._read_messages, name="ajet-channel", daemon=True).start()

    def next_order(self) -> Message:
        """Wait for the next `attempt` or `stop`. Raises EOFError or OSError when the rollout's process is gone."""
        order = self._orders.get()
        if isinstance(order, Exception):
            raise order
        return order

    def begin(self, attempt: int) -> None:
        """Allow requests of the attempt until its `end`."""
        with self._waiting_lock:
            self._open_requests[attempt] = deque()

    def post(self, attempt: int, kind: str, value: Any) -> Future[Message]:
        """Send a request and return a future of the reply. Raises EpisodeError."""
        if os.getpid() != self.owner:
            raise make_error("forked", "a forked process requested a model client: create the client before the fork")
        body = encode_request(kind, value)
        reply: Future[Message] = Future()
        with self.sending:
            with self._waiting_lock:
                waiting = self._open_requests.get(attempt)
                if waiting is None:
                    raise _make_over_error()
                waiting.append(reply)
            self.channel.send(attempt, kind, body)
        self._send_output()
        return reply

    def ask(self, attempt: int, kind: str, value: Any) -> Any:
        """Send a request and wait in this thread for the reply. Raises EpisodeError."""
        return read_reply(kind, self.post(attempt, kind, value).result())

    def is_open(self, attempt: int) -> bool:
        """True if this process is the worker and the attempt has not ended."""
        return os.getpid() == self.owner and attempt in self._open_requests

    def send_output(self, stream: OutputStream) -> None:
        """Send the stream's tail now, or leave the tail to the thread that holds the send lock.

        This never waits: a destructor may print in the very thread that holds the lock.
        """
        if not stream.is_queued:
            stream.is_queued = True
            self._output.append(stream)
        self._send_output()

    def end(self, attempt: int, body: bytes) -> None:
        """Send the attempt's end, once. Open requests of the attempt fail."""
        with self.sending:
            self._write_output()
            with self._waiting_lock:
                waiting = self._open_requests.pop(attempt, None)
            if waiting is not None:
                self.channel.send(attempt, "ended", body)
        self._send_output()
        for reply in waiting or ():
            if reply.set_running_or_notify_cancel():
                reply.set_exception(_make_over_error())

    def _read_messages(self) -> None:
        """Read until the channel fails: pass orders to the main thread, replies to their requests, and the error to the
        main thread.
        """
        try:
            while True:
                message = self.channel.receive()
                if message.kind in ("attempt", "stop"):
                    self._orders.put(message)
                else:
                    self._deliver_reply(message)
        except Exception as problem:  # noqa: BLE001 - raised in the thread that waits for orders
            self._orders.put(problem)

    def _deliver_reply(self, message: Message) -> None:
        """Set a reply as the result of its attempt's oldest open request. It is dropped if the attempt has ended."""
        with self._waiting_lock:
            waiting = self._open_requests.get(message.about)
            reply = waiting.popleft() if waiting else None
        if reply is not None and reply.set_running_or_notify_cancel():
            reply.set_result(message)

    def _send_output(self) -> None:
        """Write the queued output unless another thread holds the send lock: that thread calls this method after its
        send.
        """
        while self._output and self.sending.acquire(blocking=False):
            try:
                self._write_output()
            finally:
                self.sending.release()

    def _write_output(self) -> None:
        """Write the queued output. The caller holds the send lock."""
        while self._output:
            stream = self._output.popleft()
            stream.is_queued = False  # before taking the tail, because later output queues the stream again
            tail = stream.tail.take()
            if tail[0] and (stream.attempt == NO_ATTEMPT or self.is_open(stream.attempt)):
                self.channel.send(stream.attempt, stream.kind, encode_value(tail))

    def _disconnect_fork(self) -> None:
        """Replace the channel's descriptor in a forked process, which must not write to the channel."""
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, self._descriptor, inheritable=False)
        os.close(devnull)


def read_reply(kind: str, reply: Message) -> Any:
    """Return the value of the reply to a request of the given kind. Raises EpisodeError."""
    if reply.kind == "ok":
        return decode_reply(kind, reply.body)
    if reply.kind == "failed":
        raise EpisodeError(decode_failure(reply.body))
    raise make_error("endpoint", reply.body, boundary="ajet")


def _make_over_error() -> EpisodeError:
    """Return the error for a request of an attempt that has ended."""
    return make_error("stopped", "its episode has ended", boundary="ajet")
