"""What the configuration knows of parts that have a name: a table of each kind, handed down to it.

Invariant: nothing in this room names one, or the code of a room above. `handed.known` is the one that was handed down.
The tables name code as text, since settings are checked without it; a key that takes such a part says of which kind
(`schema.base.key`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ajet.config.backbones import Descriptor

Kind = Literal["algorithm", "loss", "tracker", "isolation", "store", "reader", "workflow", "scorer"]
"""Of parts that a key names, or of which it refers to one of the user's own. A backbone has a name only."""
Need = Literal["group", "reference", "teacher", "critic"]
"""group: at least two scored attempts at one task, to compare them. reference: `use_kl_in_reward`, which has the
reference model asked for its logprobs. teacher: the log-probabilities that `algorithm.teacher` gives the attempts'
tokens. critic: the values that a head of the policy gives each of them (`algorithm.critic`)."""


GROUPS: Mapping[Kind, str] = {"tracker": "ajet.trackers"}
"""Entry points of installed packages that bring a part: its name, and where its class is. (A backbone's are
`backbone_names.GROUP`.)"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that a YAML may name, known without importing it."""

    code: str = ""
    """A reference to its class; empty where this version has none."""
    variables: tuple[str, ...] = ()
    """Environment variables that it reads, which a job on a cluster must get."""
    interactive: bool = True
    """Whether it takes what is defined in the running program or notebook."""
    first_key: tuple[str, str] | None = None
    """The key of the section of its name that it cannot do without, and what belongs there."""
    scorer: str = ""
    """Of a task reader: the scorer of its rows where nobody else decides."""
    later: str = ""
    """The sentence that refuses it, where this version knows it by name only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPart(Part):
    """An algorithm, known without importing it."""

    advantage: str
    """Of episode i, as a formula; r are rewards."""
    paper: str
    needs: frozenset[Need] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart(Part):
    """A policy loss, known without importing it."""

    formula: str
    """Of one token."""
    paper: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything that comes with ajet, by name."""

    backbones: Mapping[str, Descriptor]
    algorithms: Mapping[str, AlgorithmPart]
    losses: Mapping[str, LossPart]
    trackers: Mapping[str, Part]
    isolations: Mapping[str, Part]
    stores: Mapping[str, Part]
    readers: Mapping[str, Part]
    workflows: Mapping[str, Part]
    scorers: Mapping[str, Part]
    """Each a function or a class (`task_judge.scorers`), imported when it is used."""
    services: tuple[str, ...] = ()
    """References to functions `(experiment) -> Iterable[Service]`: who is asked before a run begins."""
    embedders: Mapping[str, Part] = field(default_factory=dict)
    """Models of this machine that embed texts, `embedded:NAME` in a YAML: each a class without arguments, whose objects
    answer texts with a vector each."""

    def of(self, kind: Kind) -> Mapping[str, Part]:
        """The table of one kind."""
        tables: dict[Kind, Mapping[str, Part]] = {
            "algorithm": self.algorithms,
            "loss": self.losses,
            "tracker": self.trackers,
            "isolation": self.isolations,
            "store": self.stores,
            "reader": self.readers,
            "workflow": self.workflows,
            "scorer": self.scorers,
        }
        return tables[kind]


def brought(kind: Kind) -> dict[str, Part]:
    """The parts that installed packages bring by entry points, by name."""
    from importlib import metadata  # 10 ms, which `ajet --help` has no use for

    group = GROUPS.get(kind)
    return {point.name: Part(point.value) for point in metadata.entry_points(group=group)} if group else {}


def own(kind: Kind) -> str:
    """The form of a reference to a part of the user's own."""
    return f"{kind}.py->My{kind.capitalize()}"
