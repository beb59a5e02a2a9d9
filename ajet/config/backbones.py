"""Backbone descriptors: what a trainer integration (local, verl, …) can do, readable without importing it.

Invariant: code compares no backbone by name. Abilities and places of code are read from the descriptor (`can`, `roots`,
`idle`). Descriptors name their code as text, because settings are checked without torch, ray or the backbone. A
backbone is a name rather than a file: the name reaches the command line, other processes and readers of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ajet.config.plugin import PluginPart, load_code
from ajet.config.plugins import describe_broken, find_all_parts, find_part, find_parts
from ajet.schema.errors import ConfigError

Capability = Literal[
    "trains",
    "serves",
    "recomputes",
    "streams",
    "decouples",
    "replaces",
    "oversamples",
    "deterministic",
    "interactive",
    "spreads",
    "teaches",
    "distils",
    "chooses",
    "observes",
    "grades",
    "adapts",
    "values",
]
"""An ability of a backbone.

- trains: improves the model.
- serves: answers agents outside of episodes (`ajet serve`).
- recomputes: computes log-probabilities a second time (`ajet prove`).
- streams: plays episodes during the training of earlier episodes.
- decouples: episodes come from sampler processes (`ajet sample`).
- replaces: plays another task in place of an unscored task.
- oversamples: begins more groups than a batch needs.
- deterministic: a killed and resumed run equals an uninterrupted run.
- interactive: agents may be defined in the running program or notebook.
- spreads: runs on several machines.
- teaches: trains on given replies (`ajet sft`).
- distils: queries a teacher about sampled tokens (`adv_estimator: distillation`).
- chooses: a loss chooses among all tokens of an optimizer step (`policy_loss: clip_cov`).
- observes: trains on tokens that the environment wrote (`adv_estimator: echo`).
- grades: the next tasks depend on earlier success (`data.curriculum`).
- adapts: trains several adapters on a single model (`lora.adapters`).
- values: a critic predicts the return at each token (`adv_estimator: gae`).
"""

CAPABILITY_WORDS: Mapping[Capability, str] = {
    "streams": "sample while it trains",
    "decouples": "train on episodes that samplers run",
    "oversamples": "begin more groups than a batch needs",
    "deterministic": "repeat an interrupted run bit for bit",
    "teaches": "train on given replies",
    "distils": "use the log-probabilities of a teacher model",
    "grades": "choose tasks by how often they were solved",
    "chooses": "process all tokens of an optimizer step together",
    "observes": "train on the text of the environment",
    "adapts": "train several adapters on one model",
    "values": "train a value head (critic)",
}
"""Verb phrases for capabilities required by a key's value."""


@dataclass(frozen=True)
class KeyAdvice:
    """Advice on keys of a backbone's own config that have a replacement below `ajet`.

    Keys are dotted, without the backbone's name.
    """

    instead: Mapping[str, str] = field(default_factory=dict)
    """Replacement text for keys in sections unknown to the backbone or shared with ajet."""
    like: Mapping[str, str] = field(default_factory=dict)
    """Our key for each key that is decided by ours but not filled from ours unchanged."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The effective setting for each key that the backbone reads but a run of ajet ignores."""
    switched: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further ignored keys, by the switch key: they have an effect only if the user sets the switch to false."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Our key for each short name of the backbone in sections of the same name."""

    def list_unread(self, off: Collection[str] = ()) -> dict[str, str]:
        """Return the backbone's keys that ajet ignores, each with the setting that counts instead.

        Args:
            off: Keys of `switched` that the user sets to false, whose further keys then have an effect.
        """
        unread = dict(self.unread)
        for switch, keys in self.switched.items():
            if switch not in off:
                unread |= keys
        return unread


@dataclass(frozen=True)
class Descriptor:
    """The name and abilities of a backbone (trainer integration), and references to its code."""

    name: str
    about: str
    """A verb phrase on the backbone, to follow its name."""
    can: frozenset[Capability] = frozenset()
    opens: str | None = None
    """Reference to an `ajet.backbone.contract.Backbone` class for the run's own process. None: the runner starts
    processes.
    """
    runner: str | None = None
    """Reference to a subclass of `ajet.train.runner.Runner` for starting a training's processes.

    None: `ajet.commands.runner.InProcessRunner`.
    """
    scorer: str | None = None
    """Reference to a class with the methods of `ajet.backbone.local.scorer.LocalScorer`.

    None: recorded weights cannot be loaded.
    """
    layer: Path | None = None
    """A YAML of `ajet` keys with other defaults, between ours and the user's."""
    roots: tuple[str, ...] = ()
    """Top-level sections of the YAML that belong to the backbone, such as `actor_rollout_ref`."""
    sections: tuple[str, ...] = ()
    """Root names of the backbone's own config. Names missing from `roots` count only below the backbone's name."""
    filled: tuple[Path, ...] = ()
    """YAMLs that fill the backbone's keys from ajet's."""
    defaults_page: str = ""
    """The page comparing the backbone's defaults with ajet's, or "" if equal."""
    advice: KeyAdvice = field(default_factory=KeyAdvice)
    """Advice in errors and remarks on backbone keys that `filled` does not relate to ours."""
    shares_gpus: bool = False
    """True if trainer and engine take turns on the same GPUs, over which the weights are sharded."""
    idle: Mapping[str, str | None] = field(default_factory=dict)
    """Keys and sections below `ajet` without effect on the backbone, each with the reason or the replacement.

    None marks a key with an effect inside a section without effect.
    """
    extra: str = ""
    """The extra of ajet with the backbone's packages."""

    def __post_init__(self) -> None:
        """Raise ValueError if the backbone claims an ability without code for it, or has code without the claim."""
        for capability, code in (("serves", self.opens), ("recomputes", self.scorer)):
            if (capability in self.can) != (code is not None):
                raise ValueError(f"the backbone {self.name}: {capability} without its code, or the reverse")


@lru_cache(maxsize=1)
def list_shipped_backbones() -> Mapping[str, Descriptor]:
    """Return the descriptors of the backbones that ship with ajet, by name."""
    return {name: _load_descriptor(name, part) for name, part in find_parts("backbone").items()}


def find_backbone(name: str) -> Descriptor:
    """Return the descriptor of a backbone by its name.

    Raises:
        ConfigError: The name is unknown, or the package that adds the backbone is broken.
    """
    part = find_part("backbone", name)
    if part is None:
        names = [*find_all_parts("backbone")]
        similar = get_close_matches(name, names, 1)
        broken = f". {reason}" if (reason := describe_broken()) else ""
        raise ConfigError(
            f"ajet.backbone is {name!r}.",
            expected=f"one of {', '.join(names)}, or a backbone that an installed package adds{broken}",
            do=f"did you mean {similar[0]}?" if similar else "",
        )
    return _load_descriptor(name, part)


def find_checkpoint_owner(state: Mapping[str, Any]) -> Descriptor | None:
    """Return the backbone in whose own format a checkpoint is written, or None for Hugging Face layout.

    Args:
        state: The checkpoint's state, in which such a backbone has a key with its name.

    Raises:
        ConfigError: The package that adds the backbone is broken.
    """
    name = next((name for name in find_parts("backbone") if name in state), None)
    if name is None:
        name = next((name for name in find_all_parts("backbone") if name in state), None)
    return find_backbone(name) if name is not None else None


def _load_descriptor(name: str, part: PluginPart) -> Descriptor:
    """Import and return the descriptor of a backbone. Raise ConfigError if its package is broken."""
    try:
        descriptor: Any = load_code(part.code)
    except Exception as error:  # the package's code runs here, it may raise anything
        raise ConfigError(
            f"The backbone {name} cannot be loaded: {type(error).__name__}: {error}",
            where=part.code,
            do="fix or uninstall the package in which the error occurs",
        ) from error
    if not isinstance(descriptor, Descriptor) or descriptor.name != name:
        raise ConfigError(
            f"The package that adds the backbone {name} describes it by {descriptor!r}, which is not a Descriptor.",
            where=part.code,
            expected=f"ajet.config.backbones.Descriptor(name={name!r}, …)",
        )
    return descriptor
