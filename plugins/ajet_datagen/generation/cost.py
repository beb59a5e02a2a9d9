"""Cost of a generation: requests, tokens reported by servers, and money by the configured prices.

Invariant: a request counts when sent, tokens count when a reply arrives, readable or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.record.console import counted

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices of a million prompt and reply tokens of a model. 0 means unknown."""

    prompt: float = 0.0
    reply: float = 0.0


@dataclass(slots=True)
class GenerationCost:
    """Sums up requests, tokens and money of one generation."""

    calls: int = 0
    unreadable: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    money: float = 0.0
    embedded: int = 0  # number of embedded texts

    def count_request(self) -> None:
        """Count one sent request."""
        self.calls += 1

    def count_reply(self, prompt_tokens: int, reply_tokens: int, price: TokenPrice) -> None:
        """Add a reply's tokens and price to the cost."""
        self.prompt_tokens += prompt_tokens
        self.reply_tokens += reply_tokens
        self.money += (prompt_tokens * price.prompt + reply_tokens * price.reply) / MILLION

    def describe_cost(self) -> str:
        """Return the cost in a few words; "" without requests."""
        parts = (
            [f"{counted(self.calls, 'request')}, {self.prompt_tokens:,} + {self.reply_tokens:,} tokens"]
            if self.calls
            else []
        )
        parts += [f"{self.money:.4g} in the currency of the models' prices"] if self.money else []
        parts += [f"{counted(self.embedded, 'text')} embedded"] if self.embedded else []
        return ", ".join(parts)
