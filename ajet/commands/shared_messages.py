"""Attempts that share their messages: a request that holds another task's question, or its own one twice.

Invariant: found in what was sent. A question that the task itself contains elsewhere, for example as a worked example,
does not count, nor does a message that each attempt sends.
"""

from __future__ import annotations

from collections.abc import Sequence

from ajet.commands.unasked_question import source_file
from ajet.record.console import counted
from ajet.schema.episode import Episode
from ajet.schema.messages import text_of

LEAST = 8
"""Characters of a question from which on finding it by chance is unlikely."""


def shared_messages_hint(episodes: Sequence[Episode], workflow: type[object] | None) -> str:
    """Return what to say of agents whose attempts share messages, with the agent's file; "" if none do."""
    prompts = [_remove_question(episode) for episode in episodes if episode.calls]
    if all(prompt == prompts[0] for prompt in prompts):
        return ""
    questions = {episode.task.main_query.strip() for episode in episodes}
    questions = {question for question in questions if len(question) >= LEAST}
    sharing = [episode for episode in episodes if _has_foreign_question(episode, questions)]
    if not sharing:
        return ""
    file = source_file(workflow).name if workflow is not None else ""
    return (
        f"{counted(len(sharing), 'episode')} sent the question of another attempt: messages are shared by attempts"
        f"{f' ({file})' if file else ''}; make the list inside the agent, for each attempt anew"
    )


def _has_foreign_question(episode: Episode, questions: set[str]) -> bool:
    if not episode.calls:
        return False
    sent, own = _first_request(episode), episode.task.main_query.strip()
    if len(own) >= LEAST and sent.count(own) > 1:
        return True
    return any(question in sent and question not in episode.task.model_dump_json() for question in questions)


def _first_request(episode: Episode) -> list[str]:
    return [text_of(episode.messages[index]).strip() for index in episode.calls[0].messages]


def _remove_question(episode: Episode) -> list[str]:
    """Return the texts of the first request without the task's question, once."""
    sent, own = _first_request(episode), episode.task.main_query.strip()
    if own in sent:
        sent.remove(own)
    return sent
