"""`ajet chat RUN`: talk to the model a run has tuned.

Invariant: the weights are those of the run's best checkpoint (the latest without a validated one), sampled by the
same engine and rendered by the same renderer as in training.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.record.console import console
from ajet.schema.errors import UserError
from ajet.tokens import Renderer


def chat(run: str, root: Path, prompt: str | None = None, *, system: str | None = None) -> int:
    """Answer `prompt` once, or read lines until an empty one or end of file. Exit code 0."""
    from ajet.config import load_experiment
    from ajet.engine.sampler import open_sampler
    from ajet.record import Checkpoints

    folder = Path(run) if Path(run, "resolved.yaml").exists() else root / run
    if not (folder / "resolved.yaml").exists():
        raise UserError(
            f"There is no run named {run}.",
            where=str(folder),
            expected="a run directory with a resolved.yaml and checkpoints/",
            do=f"look into {root} for the names of the runs",
        )
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoint = checkpoints.best() or checkpoints.latest()
    if checkpoint is None:
        raise UserError(f"{run} has saved no checkpoint yet.", where=str(folder / "checkpoints"))
    experiment = load_experiment(folder / "resolved.yaml")
    settings = experiment.ajet.model_copy(deep=True)
    settings.model.path = str(checkpoint.path)
    engine, tokenizer = open_sampler(settings)
    console.print(f"[dim]{checkpoint.path} · an empty line ends the chat[/]")
    try:
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        renderer = Renderer(tokenizer)
        if prompt is not None:
            asyncio.run(_answer(engine, renderer, messages, prompt, settings))
            return 0
        while line := _read_line():
            asyncio.run(_answer(engine, renderer, messages, line, settings))
    finally:
        engine.close()
    return 0


def _read_line() -> str:
    try:
        return console.input("[bold cyan]you:[/] ").strip()
    except EOFError:
        return ""


async def _answer(
    engine: TokenEngine, renderer: Renderer, messages: list[dict[str, Any]], line: str, settings: Any
) -> None:
    """Stream one reply to the terminal and append both turns to `messages`."""
    messages.append({"role": "user", "content": line})
    rendered = renderer.render(messages)
    room = settings.rollout.max_model_len - len(rendered.ids)
    sampling = Sampling(
        max_tokens=max(1, min(settings.rollout.max_response_length_in_one_turn, room)),
        temperature=0.0,
        stop_ids=renderer.end_ids,
    )
    ids: list[int] = []
    request = TokenRequest(rendered.ids, sampling, DrawKey(settings.seed, 0, 0, len(messages)))
    async for chunk in engine.generate(request):
        ids += chunk.ids
    import numpy as np

    reply = renderer.parse(np.asarray(ids, np.int32))
    messages.append(reply)
    console.print(f"[bold green]model:[/] {reply.get('content') or ''}", markup=True)
