"""Client: episodes of an `ajet serve`, sequential or in parallel.

Invariant: every begun episode is ended, whatever the agent raises. An episode lost by the server is no error of the
agent; a further episode is played instead.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from ajet.client.episode import Episode
from ajet.client.refusals import EpisodeLost, Refused, Unreachable
from ajet.client.request_sender import RequestSender

Task = str | Mapping[str, Any]
"""A question, or a row of a task file."""
_GIVEN = ("task", "repeat", "base_url", "api_key", "path_base_url", "model", "version")


class Client:
    """Client of a server. Thread-safe, usable as a context manager."""

    def __init__(
        self,
        url: str | None = None,
        admin_key: str | None = None,
        *,
        patience: float = 600.0,
        timeout: float = 600.0,
    ) -> None:
        """Create a client. Raises ValueError without an address or key.

        Args:
            url, admin_key: default AJET_URL and AJET_ADMIN_KEY of the environment.
            patience: seconds of retries for a busy or restarting server.
            timeout: seconds per request; a judge may take long.
        """
        url, admin_key = url or os.environ.get("AJET_URL"), admin_key or os.environ.get("AJET_ADMIN_KEY")
        if not url or not admin_key:
            raise ValueError(
                "pass the server and its key, as in Client(url, admin_key), or set AJET_URL and AJET_ADMIN_KEY"
            )
        url = url.rstrip("/").removesuffix("/v1")
        self._sender = RequestSender(url, admin_key, patience=patience, timeout=timeout)

    def begin(
        self,
        task: Task | None = None,
        *,
        agent: str = "default",
        trainable_targets: list[str] | None = None,
        train: bool = True,
        held_out: bool = False,
    ) -> Episode:
        """Begin an episode that the caller must end. Raises Refused and Unreachable.

        Args:
            task: None for the server's next task.
            train: False only records the episode, for evaluation.
            held_out: like train=False, and counted in the server's next validation. Without a `task`, the next held-out
                task.
        """
        body: dict[str, Any] = {
            "agent": agent, "trainable_targets": trainable_targets, "train": train, "held_out": held_out,
        }  # fmt: skip
        if task is not None:
            body["task"] = task if isinstance(task, str) else dict(task)
        response = self._sender.ask("POST", "/episodes", body)
        return Episode(response["episode"], **{name: response[name] for name in _GIVEN}, _sender=self._sender)

    @contextmanager
    def episode(self, task: Task | None = None, **more: Any) -> Iterator[Episode]:
        """Run an episode as a `with` block: an exception fails the episode, and an unfinished episode is given up."""
        episode = self.begin(task, **more)
        try:
            yield episode
        except EpisodeLost:
            raise
        except BaseException as problem:
            if episode.ended is None:
                with suppress(Refused, Unreachable):  # the caller needs the first exception, not this one
                    if isinstance(problem, Exception):
                        episode.fail(problem)
                    else:
                        episode.give_up()
            raise
        if episode.ended is None:
            episode.give_up()

    def play(
        self,
        agent: Callable[[Episode], Any],
        *,
        episodes: int | None = None,
        at_once: int = 1,
        tasks: Iterator[Task] | None = None,
        **more: Any,
    ) -> Counter[str]:
        """Let `agent` play episodes in `at_once` threads.

        Returns the number of episodes by status, `lost` included. The agent returns the reward, a mapping of `finish`'s
        arguments, or None for the server's judge. An exception fails the episode.

        Args:
            episodes: None for no limit.
            tasks: the caller's tasks until exhausted; default the server's.

        Raises:
            Refused, Unreachable: the server refused or did not respond.
        """
        playing = _EpisodePlayer(self, agent, episodes, tasks, more)
        threads = [threading.Thread(target=playing.run, name=f"ajet-client-{n}", daemon=True) for n in range(at_once)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            playing.stop()
            raise
        if playing.problem is not None:
            raise playing.problem
        return playing.counts

    def validate(self, agent: Callable[[Episode], Any], *, attempts: int = 1, at_once: int = 1) -> Counter[str]:
        """Let `agent` play each held-out task of the server `attempts` times, as in `play`.

        The results count in the next validation and are never trained on.

        Raises:
            ValueError: the server has no held-out tasks.
        """
        tasks = int(self.overview()["held_out_tasks"])
        if not tasks:
            raise ValueError("the server's task reader has no held-out tasks")
        return self.play(agent, episodes=attempts * tasks, at_once=at_once, held_out=True)

    def overview(self) -> dict[str, Any]:
        """What is open at the server, counts, the version of the weights. Raises Refused and Unreachable."""
        return self._sender.ask("GET", "/episodes")

    def close(self) -> None:
        """Close the client's connections. Idempotent."""
        self._sender.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _EpisodePlayer:
    """Plays the episodes of one `play` call. Its threads share the remaining number and the tasks."""

    def __init__(
        self,
        client: Client,
        agent: Callable[[Episode], Any],
        episodes: int | None,
        tasks: Iterator[Task] | None,
        more: dict[str, Any],
    ) -> None:
        self._client = client
        self._agent = agent
        self._episodes_left = episodes
        self._tasks = tasks
        self._begin_options = more
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.problem: Exception | None = None

    def stop(self) -> None:
        """Prevent the start of further episodes."""
        with self._lock:
            self._episodes_left = 0

    def run(self) -> None:
        """Play until no task is left."""
        try:
            while (next_task := self._next_task()) is not None:
                status = self._play_episode(*next_task)
                with self._lock:
                    self.counts[status] += 1
        except Exception as problem:  # noqa: BLE001 - the thread's error is raised by `play`
            self.stop()
            self.problem = problem

    def _next_task(self) -> tuple[Task | None] | None:
        with self._lock:
            if self._episodes_left == 0:
                return None
            task = next(self._tasks, None) if self._tasks is not None else None
            if self._tasks is not None and task is None:
                return None
            if self._episodes_left is not None:
                self._episodes_left -= 1
            return (task,)

    def _play_episode(self, task: Task | None) -> str:
        episode = self._client.begin(task, **self._begin_options)
        try:
            try:
                came = self._agent(episode)
            except (Exception, SystemExit) as problem:  # noqa: BLE001 - the agent's, which the record gets
                return str(episode.fail(f"{type(problem).__name__}: {problem}")["status"])
            if episode.ended is None:
                outcome = came if isinstance(came, Mapping) else {"reward": came}
                episode.finish(**outcome)
        except EpisodeLost:
            return "lost"
        except Unreachable:
            raise
        except Exception as problem:  # the agent's result is no valid reward; the caller of `play` gets the error
            with suppress(Refused, Unreachable):
                episode.fail(problem)
            raise
        return str((episode.ended or {})["status"])
