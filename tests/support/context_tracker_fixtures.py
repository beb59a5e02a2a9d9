"""Random episodes for the context tracker's tests, in a small alphabet so that prefixes coincide by chance too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from ajet.schema.call import Call, VersionRun, full_ids, prompt_ids


def make_call(
    index: int,
    suffix: Sequence[int],
    response: Sequence[int],
    *,
    parent: int | None = None,
    prefix: int = 0,
    agent: str = "solver",
    trained: bool = True,
    finish: str = "stop",
    tools: int | None = None,
    fork: str | None = None,
    logprobs: Sequence[float] | None = None,
    version: int = 3,
) -> Call:
    """A call as the gateway writes it."""
    drawn = np.asarray([-0.5] * len(response) if logprobs is None else logprobs, np.float32)
    return Call(
        index=index,
        agent=agent,
        target=agent,
        trained=trained,
        parent=parent,
        prefix=prefix,
        suffix_ids=np.asarray(suffix, np.int32),
        response_ids=np.asarray(response, np.int32),
        logprobs=drawn,
        logprobs_unit=drawn * 2,
        versions=(VersionRun(0, version, version),) if len(response) else (),
        finish=finish,
        messages=(),
        tools=tools,
        reply=None,
        fork=fork,
    )


@st.composite
def episodes(draw: st.DrawFn) -> list[Call]:
    """Calls that extend, fork from, repeat or ignore earlier ones; some linked, some not, some never trained."""
    tokens = st.lists(st.integers(0, 2), max_size=4)
    calls: list[Call] = []
    for index in range(draw(st.integers(0, 9))):
        suffix, response = draw(tokens), draw(tokens)
        parent, prefix = None, 0
        if calls and draw(st.integers(0, 4)):
            parent = draw(st.integers(0, index - 1))
            size = full_ids(calls, parent).size
            prefix = size if draw(st.booleans()) else draw(st.integers(0, size))
            if not draw(st.integers(0, 2)):  # the same prompt, unlinked
                suffix = [*full_ids(calls, parent)[:prefix].tolist(), *suffix]
                parent, prefix = None, 0
        elif calls:
            again = draw(st.integers(0, index - 1))
            suffix, response = prompt_ids(calls, again).tolist(), calls[again].response_ids.tolist()
        size = len(response)
        calls.append(
            make_call(
                index,
                suffix,
                response,
                parent=parent,
                prefix=prefix,
                agent=draw(st.sampled_from(["solver", "critic"])),
                trained=draw(st.integers(0, 5)) > 0,
                finish=draw(st.sampled_from(["stop"] * 5 + ["length", "tool_calls", "aborted", "error"])),
                tools=draw(st.sampled_from([None, 0, 1])),
                logprobs=draw(st.lists(st.sampled_from([-1.0, -2.0]), min_size=size, max_size=size)),
                version=draw(st.integers(0, 2)),
            )
        )
    return calls


def shuffled(calls: Sequence[Call], order: Sequence[int]) -> list[Call]:
    """The same calls in another order, links kept."""
    place = {old: new for new, old in enumerate(order)}
    return [
        replace(calls[old], index=new, parent=None if calls[old].parent is None else place[calls[old].parent])
        for new, old in enumerate(order)
    ]
