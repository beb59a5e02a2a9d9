"""What a reading cost: requests, tokens as servers count them, and money by the prices that the YAML names.

Invariant: a request counts when it is sent, its tokens when it is answered, whether or not the answer can be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.record.console import counted

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Money for a million tokens of a model; 0: nobody said."""

    prompt: float = 0.0
    reply: float = 0.0


@dataclass(slots=True)
class GenerationCost:
    """The tokens and money of all requests of one reading."""

    calls: int = 0
    unreadable: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    money: float = 0.0
    embedded: int = 0
    """Texts."""

    def count_request(self) -> None:
        """Another request."""
        self.calls += 1

    def count_reply(self, prompt_tokens: int, reply_tokens: int, price: TokenPrice) -> None:
        """Another reply."""
        self.prompt_tokens += prompt_tokens
        self.reply_tokens += reply_tokens
        self.money += (prompt_tokens * price.prompt + reply_tokens * price.reply) / MILLION

    def describe_cost(self) -> str:
        """The cost in a few words; "" where nothing was asked."""
        parts = (
            [f"{counted(self.calls, 'request')}, {self.prompt_tokens:,} + {self.reply_tokens:,} tokens"]
            if self.calls
            else []
        )
        parts += [f"{self.money:.4g} by the prices of models"] if self.money else []
        parts += [f"{counted(self.embedded, 'text')} embedded"] if self.embedded else []
        return ", ".join(parts)
