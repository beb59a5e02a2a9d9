"""Chooses torch's thread count on a CPU, and adapts it to the load of other processes during a run.

A parallel loop ends with its slowest thread: beside one busy process, a step with two threads on two cores takes three
times as long as on quiet cores, and with one thread less than twice as long.

Invariant: a configured count, OMP_NUM_THREADS and a deterministic rollout fix the count. Otherwise only
`adjust_threads` changes it. Computing threads call it between two pieces of work, because torch stores the count per
thread.
"""

from __future__ import annotations

import math
import os
import threading
import time

import psutil
import torch
from loguru import logger

from ajet.engine.openmp import end_worker_threads
from ajet.record.console import counted
from ajet.record.processors import count_allowed_cores, count_cores
from ajet.record.rate_limiter import RateLimiter

LOOK_SECONDS = 0.3
"""Seconds of load measurement before the first thread count is chosen."""
MEASURE_SECONDS = 0.5
"""Shortest time between two measurements of a run; the kernel counts in hundredths of a second."""
LOG_SECONDS = 30.0
"""Minimum seconds between two log lines about a changed thread count."""
NOISE, TAKEN = 0.25, 0.4
"""Shares of a core used by other processes: up to NOISE the core gets a thread, above TAKEN it loses its thread."""
TRIAL_SECONDS = 30.0
"""Seconds after which processes of lower priority are tried again; between sessions or containers they do not yield."""


def choose_count(cores: int, busy: float, limit: int, current: int) -> int:
    """Return the thread count, 1 to `limit`, if other processes keep `busy` of `cores` cores busy.

    Args:
        current: the present count; it stays if a core is used between NOISE and TAKEN.
    """
    lowest, highest = math.floor(cores - busy + NOISE), math.floor(cores - busy + TAKEN)
    return min(limit, max(1, lowest, min(current, highest)))


def read_busy_seconds() -> tuple[float, float]:
    """Return the processor seconds of other processes on the allowed cores: of the same, and of lower priority."""
    times = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
    same_priority = lower_priority = 0.0
    for core_times in (times[cpu] for cpu in allowed if cpu < len(times)):
        # Guests count as user or nice time already.
        idle = core_times.idle + sum(getattr(core_times, name, 0.0) for name in ("iowait", "guest", "guest_nice"))
        same_priority += sum(core_times) - idle - getattr(core_times, "nice", 0.0)
        lower_priority += getattr(core_times, "nice", 0.0)
    own_seconds = time.process_time()
    # A niced process counts the niced ones as its own priority.
    return (
        (same_priority - own_seconds, lower_priority)
        if os.getpriority(os.PRIO_PROCESS, 0) <= 0
        else (same_priority + lower_priority - own_seconds, 0.0)
    )


class ThreadCount:
    """The number of threads that a run's forward passes use, at most `limit`.

    `measure` chooses it from the load of other processes since the previous measurement.
    """

    def __init__(self, cores: int, limit: int) -> None:
        self.value = limit
        self.busy = 0.0
        """Cores kept busy by other processes at the last measurement."""
        self._core_count, self._limit = cores, limit
        self._measured_at, self._busy_seconds = time.monotonic(), read_busy_seconds()
        self._lock, self._lines = threading.Lock(), RateLimiter(LOG_SECONDS)
        self._logged_count: int | None = None
        self._is_trial, self._next_trial = False, 0.0

    def measure(self) -> None:
        """Choose the number of threads from the machine's load since the last measurement."""
        now, seconds = time.monotonic(), read_busy_seconds()
        elapsed = now - self._measured_at
        same_priority, lower_priority = (
            max(0.0, seconds_now - seconds_before) / elapsed
            for seconds_before, seconds_now in zip(self._busy_seconds, seconds, strict=True)
        )
        self.busy = same_priority + lower_priority
        self._measured_at = now
        self._busy_seconds = seconds
        previous_count, self.value = self.value, self._count_for_load(same_priority, lower_priority, now)
        if self._logged_count is None:
            self._logged_count = self.value
        elif self.value == previous_count != self._logged_count and self._lines.is_due():  # two measurements agree
            self._logged_count = self.value
            logger.info("now {}", self.describe())

    def _count_for_load(self, same: float, lower: float, now: float) -> int:
        """Return the number of threads for a measured load.

        Processes of lower priority take a core that is free, but may yield it. A trial with more threads shows it: the
        next measurement counts only what they then still use.

        Args:
            same: cores kept busy by processes of the same priority.
            lower: cores kept busy by processes of lower priority.
            now: monotonic time of the measurement.
        """
        count = choose_count(self._core_count, same + lower, self._limit, self.value)
        count_without_lower = choose_count(self._core_count, same, self._limit, self.value)
        was_trial, self._is_trial = self._is_trial, False
        if count_without_lower > count:
            if was_trial:
                self._next_trial = now + TRIAL_SECONDS
            elif now >= self._next_trial:
                self._is_trial = True
                return count_without_lower
        return count

    def adjust(self) -> None:
        """Measure if that is due, and set the count of the calling thread."""
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._measured_at >= MEASURE_SECONDS:
                    self.measure()
            finally:
                self._lock.release()
        if torch.get_num_threads() != self.value:
            end_worker_threads()
            torch.set_num_threads(self.value)

    def describe(self) -> str:
        """Return the count and its reason for a log line."""
        load = f"{counted(self._core_count, 'core')}, {self.busy:.1f} of them busy with other processes"
        return f"{counted(self.value, 'thread')} on cpu ({load})"


_followed: ThreadCount | None = None
"""The count that follows the load in this process; None if the count is fixed."""


def choose_threads(wanted: int | str, device: torch.device, *, deterministic: bool = False) -> int:
    """Set torch's thread count and return the number.

    `auto` takes OMP_NUM_THREADS, or else the allowed physical cores left free by other processes, now and at each
    `adjust_threads`.

    Args:
        deterministic: True to take all allowed cores and keep the number, because it affects the last bits of sums.
    """
    global _followed
    _followed, limit = None, count_cores()
    if isinstance(wanted, int):
        count, reason = wanted, "as configured"
    elif (configured := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(configured) > 0:
        count, reason = int(configured), "OMP_NUM_THREADS"
    elif deterministic or device.type != "cpu":
        count, reason = limit, "all cores"
    else:
        _followed = ThreadCount(count_allowed_cores(), limit)
        time.sleep(LOOK_SECONDS)
        _followed.measure()
        torch.set_num_threads(_followed.value)
        logger.info(_followed.describe())
        return _followed.value
    torch.set_num_threads(count)
    logger.info("{} on {} ({})", counted(count, "thread"), device.type, reason)
    return count


def adjust_threads(state: torch.Tensor | None = None) -> None:
    """Set the calling thread's count to what the load allows. Does nothing if the count is fixed.

    Args:
        state: intermediate result of a layer: the count is adjusted again in the layer's backward pass.
    """
    if (followed := _followed) is None:
        return
    followed.adjust()
    if state is not None and state.requires_grad:
        state.register_hook(lambda _: followed.adjust())
