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
    """Client of a server started by `ajet serve`. Thread-safe, usable as a context manager."""

    def __init__(
        self,
        url: str | None = None,
        admin_key: str | None = None,
        *,
        patience: float = 600.0,
        timeout: float = 600.0,
    ) -> None:
        """Create a client.

        Args:
            url: Address of the server, with or without /v1. None: AJET_URL of the environment.
            admin_key: Key of the server. None: AJET_ADMIN_KEY of the environment.
            patience: Seconds of retries for a busy or restarting server.
            timeout: Seconds per request; a judge may take long.

        Raises:
            ValueError: there is no address or no key.
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
        """Begin an episode, which the caller must end.

        Args:
            task: A question, or a row of a task file. None: the server's next task.
            agent: Name of the agent in the record.
            trainable_targets: Targets whose replies are trained. None: all.
            train: False to only record the episode, for evaluation.
            held_out: True to count the episode in the server's next validation, without training on it. Without a
                `task` it is the next held-out task.

        Raises:
            Refused, Unreachable: the server refused or did not respond.
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
        """Begin an episode for a `with` block, and end it with the block.

        An exception of the block fails the episode; without `finish` in the block the episode is given up.

        Args:
            more: Further arguments of `begin`.
        """
        episode = self.begin(task, **more)
        try:
            yield episode
        except EpisodeLost:
            raise
        except BaseException as error:
            if episode.ended is None:
                with suppress(Refused, Unreachable):  # the caller needs the first exception, not this one
                    # An interrupt such as Ctrl-C is not the agent's failure.
                    if isinstance(error, Exception):
                        episode.fail(error)
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

        The agent returns the reward, a mapping of `finish`'s arguments, or None for the server's judge. An exception
        fails the episode.

        Args:
            episodes: Number of episodes. None: no limit.
            tasks: The caller's tasks, until they are exhausted. None: the server's tasks.
            more: Further arguments of `begin`.

        Returns:
            The number of episodes by status; "lost" is the status of an episode that the server has lost.

        Raises:
            Refused, Unreachable: the server refused or did not respond.
        """
        player = _EpisodePlayer(self, agent, episodes, tasks, more)
        threads = [threading.Thread(target=player.run, name=f"ajet-client-{n}", daemon=True) for n in range(at_once)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            player.stop()
            raise
        if player.problem is not None:
            raise player.problem
        return player.counts

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
        """Return the server's state: open episodes, counts, and the version of the weights.

        Raises:
            Refused, Unreachable: the server refused or did not respond.
        """
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
        """Prepare the episodes.

        Args:
            agent: Plays an episode.
            episodes: Number of episodes. None: no limit.
            tasks: The caller's tasks. None: the server's.
            more: Further arguments of `Client.begin`.
        """
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
        """Play episodes until no task is left; a thread of `play`. An error ends the episodes of all threads."""
        try:
            while (next_task := self._next_task()) is not None:
                status = self._play_episode(*next_task)
                with self._lock:
                    self.counts[status] += 1
        except Exception as error:  # noqa: BLE001 - the thread's error is raised by `play`
            self.stop()
            self.problem = error

    def _next_task(self) -> tuple[Task | None] | None:
        """Return the task of the next episode in a tuple, where None means the server's next task; None at the end."""
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
        """Let the agent play one episode, and return the episode's status.

        Raises:
            Refused, Unreachable: the server refused or did not respond.
            TypeError, ValueError: the agent returned no valid result.
        """
        episode = self._client.begin(task, **self._begin_options)
        try:
            try:
                result = self._agent(episode)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the agent's, which the record gets
                return str(episode.fail(f"{type(error).__name__}: {error}")["status"])
            if episode.ended is None:
                finish_arguments = result if isinstance(result, Mapping) else {"reward": result}
                episode.finish(**finish_arguments)
        except EpisodeLost:
            return "lost"
        except Unreachable:
            raise
        except Exception as error:  # the agent's result is no valid reward; the caller of `play` gets the error
            with suppress(Refused, Unreachable):
                episode.fail(error)
            raise
        return str((episode.ended or {})["status"])
