"""`task_judge.judges` and `task_judge.model_judge`: models that judge."""

from __future__ import annotations

from ajet.config.schema.base import Section, key


class JudgeModel(Section):
    """One of them."""

    model: str = key("", "Its name at its server.", min_length=1)
    base_url: str | None = key(
        None, "Its OpenAI-compatible server, `http://HOST:PORT/v1`; null: the one that OPENAI_BASE_URL names."
    )
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that holds its key.", training=False)
    price_in: float = key(0.0, "Money for a million tokens of the prompt.", training=False, ge=0)
    price_out: float = key(0.0, "Money for a million tokens of the reply.", training=False, ge=0)


class ModelJudge(Section):
    """How models judge."""

    votes: int = key(1, "Replies to each question; more than half must agree, or there is no score.", ge=1)
    temperature: float | None = key(None, "Of the replies; null: 0 for one vote, 1 for several.", ge=0)
    max_tokens: int = key(1024, "Tokens of a reply, thoughts included.", ge=16)
    max_chars: int = key(
        40_000, "Characters of each part that a model is shown (task, answer, tool results); the middle is cut.", ge=200
    )
    timeout: float = key(120.0, "Seconds of one request.", training=False, gt=0)
    max_retries: int = key(2, "Further requests to a model that does not answer, before the next model.", ge=0)
    retry_delay: float = key(1.0, "Seconds before the first of them; doubled before each further one.", ge=0)
    max_parallel: int = key(64, "Requests at once, of one process.", training=False, ge=1)
    requests_per_minute: int | None = key(
        None, "Of one process to one model; null: as many as there are.", training=False, ge=1
    )
    max_calls: int | None = key(
        None, "Requests that the experiment may make, in all processes, goings-on included; null: any.", training=False,
        ge=1,
    )  # fmt: skip
    max_cost: float | None = key(None, "The same in money, by the prices of `judges`; null: any.", training=False, gt=0)
    cache: bool = key(
        True, "Keep verdicts in `judges.sqlite` beside the runs, so that the same question is asked once.",
        training=False,
    )  # fmt: skip
