"""What the configuration knows of a backbone: its descriptor, found by its name.

Invariant: no backbone is compared by name: what matters is read from the descriptor (`can`, `roots`, `idle`), which
names its code as text, since settings are checked without torch, ray or a backbone's package. A backbone is a name
rather than a file because it reaches the command line, other processes and the reader of a record; a plug-in of another
distribution may bring it.
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
    "grades",
    "adapts",
    "values",
]
"""What somebody can want of a backbone.
trains: the model gets better. serves: agents outside episodes are answered, and perhaps learnt from (`ajet serve`).
recomputes: log-probabilities can be computed a second time (`ajet prove`). streams: episodes are played while others
are trained on. decouples: they are played by samplers, processes that come and go (`ajet sample`). replaces: another
task is played in place of one that nobody could score. oversamples: more groups are begun than a batch needs.
deterministic: a killed and resumed run equals an uninterrupted one. interactive: agents may be defined in the running
program or notebook. spreads: over several machines. teaches: it trains on replies that are given (`ajet sft`).
distils: a teacher is asked about what was sampled (`adv_estimator: distillation`).
chooses: a loss chooses among all tokens of an optimizer step (`policy_loss: clip_cov`). grades: which tasks come next
depends on how often they were solved (`data.curriculum`). adapts: several adapters on one model, each for agents of its
own (`lora.adapters`). values: a critic says what each token leads to (`adv_estimator: gae`)."""

CAPABILITY_WORDS: Mapping[Capability, str] = {
    "streams": "plays on while it trains",
    "decouples": "trains on what samplers play elsewhere",
    "oversamples": "begins more groups than a batch needs",
    "deterministic": "repeats a killed run bit for bit",
    "teaches": "trains on replies that are given",
    "distils": "asks a teacher about what was sampled",
    "grades": "chooses tasks by how often they were solved",
    "chooses": "has all tokens of an optimizer step at hand",
    "adapts": "trains several adapters on one model",
    "values": "keeps a critic",
}
"""Of those that a key's value may need: what such a backbone does."""


@dataclass(frozen=True)
class KeyAdvice:
    """What is written below `ajet` in place of a backbone's own keys that no layer of it fills.

    Keys are dotted, without the backbone's name.
    """

    instead: Mapping[str, str] = field(default_factory=dict)
    """Of keys in sections that the backbone does not read, or that ajet has, too: what to write."""
    like: Mapping[str, str] = field(default_factory=dict)
    """Of keys that a key of ours decides without filling it as it is: the name of ours."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Of keys in sections that the backbone reads, which decide nothing in a run of ajet's: what does."""
    switched: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further such keys, by the key that makes them count where the user sets it to false."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Of the backbone's names in sections that have the same name here: the name of ours."""

    def list_unread(self, off: Collection[str] = ()) -> dict[str, str]:
        """Return the keys that decide nothing; `off`: the keys of `switched` that the user sets to false."""
        found = dict(self.unread)
        for switch, keys in self.switched.items():
            if switch not in off:
                found |= keys
        return found


@dataclass(frozen=True)
class Descriptor:
    """A backbone's name, abilities and places, known without importing it."""

    name: str
    about: str
    """What it does, as the end of a sentence that begins with its name."""
    can: frozenset[Capability] = frozenset()
    opens: str | None = None
    """Reference to a class `ajet.backbone.contract.Backbone`, made with the experiment in the run's own process. None:
    it has processes of its own, which its runner lays out."""
    runner: str | None = None
    """Reference to the class that lays out the processes of a training, derived from `ajet.train.runner.Runner`.
    None: `ajet.commands.runner.InProcessRunner`."""
    scorer: str | None = None
    """Reference to a class `ajet.backbone.contract.RecordedScorer`; None: its weights cannot be loaded again."""
    layer: Path | None = None
    """A YAML of `ajet` keys with other defaults, between ours and the user's."""
    roots: tuple[str, ...] = ()
    """Root names of a YAML that are its own."""
    sections: tuple[str, ...] = ()
    """Root names of its own config; those that `roots` lacks count below its name alone."""
    filled: tuple[Path, ...] = ()
    """YAMLs that fill keys of its own from ours: which of ours is the like of one of them."""
    defaults_page: str = ""
    """The page that compares its own defaults with ours, where they differ."""
    advice: KeyAdvice = field(default_factory=KeyAdvice)
    """What an error or a remark says of keys of its own that `filled` does not relate to ours."""
    shares_gpus: bool = False
    """True if its trainer and its engine take turns on the same GPUs, over which the weights are sharded."""
    idle: Mapping[str, str | None] = field(default_factory=dict)
    """Keys and sections below `ajet` that have no effect on it, each with the reason, or with what does it instead;
    None: a key that has one, although its section has not."""
    extra: str = ""
    """The extra of ajet that brings what it needs."""

    def __post_init__(self) -> None:
        for capability, code in (("serves", self.opens), ("recomputes", self.scorer)):
            if (capability in self.can) != (code is not None):
                raise ValueError(f"the backbone {self.name}: {capability} without its code, or the reverse")


@lru_cache(maxsize=1)
def list_shipped_backbones() -> Mapping[str, Descriptor]:
    """The backbones that come with ajet, by name."""
    return {name: _load_descriptor(name, part) for name, part in find_parts("backbone").items()}


def find_backbone(name: str) -> Descriptor:
    """The backbone of this name. Raises ConfigError where there is none, or its package is broken."""
    part = find_part("backbone", name)
    if part is None:
        names = [*find_all_parts("backbone")]
        near = get_close_matches(name, names, 1)
        broken = f". {reason}" if (reason := describe_broken()) else ""
        raise ConfigError(
            f"ajet.backbone is {name!r}.",
            expected=f"one of {', '.join(names)}, or one that an installed package brings{broken}",
            do=f"did you mean {near[0]}?" if near else "",
        )
    return _load_descriptor(name, part)


def find_checkpoint_owner(state: Mapping[str, Any]) -> Descriptor | None:
    """The backbone in whose own form a checkpoint is: the one whose name its state has an entry of. None: it is in
    Hugging Face layout. Raises ConfigError where the package is broken."""
    name = next((name for name in find_parts("backbone") if name in state), None)
    if name is None:
        name = next((name for name in find_all_parts("backbone") if name in state), None)
    return find_backbone(name) if name is not None else None


def _load_descriptor(name: str, part: PluginPart) -> Descriptor:
    try:
        descriptor: Any = load_code(part.code)
    except Exception as problem:  # the package's code runs here, it may raise anything
        raise ConfigError(
            f"The backbone {name} cannot be loaded: {type(problem).__name__}: {problem}",
            where=part.code,
            do="mend or remove the package that brings it",
        ) from problem
    if not isinstance(descriptor, Descriptor) or descriptor.name != name:
        raise ConfigError(
            f"The backbone {name} is described by {descriptor!r}.",
            where=part.code,
            expected=f"ajet.config.backbones.Descriptor(name={name!r}, …)",
        )
    return descriptor
