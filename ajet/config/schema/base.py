"""Declare sections and keys.

Invariant: a field holds all knowledge about a key: type, default, meaning, conditions for an effect, and influence on
training. Documentation, defaults file, refusals, reports of idle keys and the comparison of runs derive from the field.
A test compares the declarations with the reads of real runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ValidationInfo

from ajet.config.backbones import Capability
from ajet.config.plugin import Kind, NamedKind, PluginPart
from ajet.config.plugins import find_parts
from ajet.config.schema.accepted import OLDER_READERS
from ajet.config.schema.choices import require_known

SERVE = "serve"
"""Name of `ajet serve` in `idle`, for keys with an effect different from a launch on the same backbone."""
EVERYWHERE = "everywhere"
"""Name of all backbones in `idle`."""
SHARED_STORES = "{shared}"
"""Placeholder in `when` for the stores shared by several processes, added by plug-ins."""

# Why a key has no effect, where several keys have the same reason; those of one backbone are its descriptor's. Each is
# the end of a line that begins with the key's name and ends without a full stop.
NO_VALIDATION = "without `rollout.user_workflow` the server runs no validation"
OWN_AGENTS = "clients run their own agents, and without `rollout.user_workflow` the server runs none"
CLIENTS_BEGIN = "clients decide when episodes begin"
ONLY_SERVED = "only `ajet serve` reads it"
ALL_TIMELINES = "a step trains on all timelines (token sequences) of its episodes"
OF_CLIENTS = (NO_VALIDATION, OWN_AGENTS)
"""Reasons valid in `ajet serve` without `rollout.user_workflow` (the player of held-out tasks)."""


class Section(BaseModel):
    """A mapping of the YAML. Unknown keys are errors, and assigned values are validated."""

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        validate_default=False,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `num_repeat: true`, because pydantic would read it as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            if not _contains_type(annotation, bool) and annotation is not Any:
                raise ValueError(f"{describe_type(annotation)}, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _require_known_part(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a name that is neither a part of the key's kind nor, where allowed, a reference.

        An older name of a task reader is replaced by its present one.
        """
        notes = read_notes(cls.model_fields[info.field_name]) if info.field_name else {}
        kind: NamedKind | None = notes.get("part") or notes.get("named")
        if kind == "reader" and value in OLDER_READERS:
            return OLDER_READERS[value]
        if kind is not None:
            for name in [value] if isinstance(value, str) else value or ():
                require_known(name, kind, or_own="part" in notes)
        return value


def key(
    default: Any,
    description: str,
    *,
    training: bool = True,
    idle: Mapping[str, str | None] | None = None,
    needs: Mapping[Any, Capability] | None = None,
    unless: tuple[str, str] | None = None,
    kind: str | None = None,
    part: Kind | None = None,
    named: NamedKind | None = None,
    lists: Kind | None = None,
    when: tuple[str, ...] | None = None,
    or_own: bool = False,
    **constraints: Any,
) -> Any:
    """Declare a key of a section.

    Args:
        training: True if a resume is refused after a change of the key.
        idle: Where the key has no effect (SERVE, EVERYWHERE), with the reason or replacement. None: an effect despite
            its section or backbone. SERVE entries hold on every backbone. Descriptors declare idle keys per backbone.
        needs: Values refused on backbones without the capability.
        unless: Another key, and its value with which the key is read even if a backbone's descriptor says otherwise.
        kind: "reference" (`file.py->Class`), "path" (an existing local file or folder) or "secret".
        part: Kind of parts named by the key. `{names}` in the description lists known names.
        named: Like `part`, without references.
        lists: Like `part`, but user code may register further names, so names are never refused here.
        when: The choosing key, and its values (spelled as in YAML) for which the declared key is read.
        or_own: True if a reference as value of the choosing key may also read the declared key.
    """
    extra: dict[str, Any] = {"training": training}
    if idle is not None:
        extra["idle"] = dict(idle)
    if needs is not None:
        extra["needs"] = [[value, capability] for value, capability in needs.items()]
    if unless is not None:
        extra["unless"] = list(unless)
    if kind is not None:
        extra["kind"] = kind
    if part is not None:
        extra |= {"part": part, "kind": "reference"}
    if named is not None:
        extra["named"] = named
    if lists is not None:
        extra["lists"] = lists
    if when is not None:
        extra |= {"when": list(when), "or_own": or_own}
    return Field(default=default, description=description, json_schema_extra=extra, **constraints)


def section(
    model: type[Section],
    description: str,
    *,
    training: bool = True,
    idle: Mapping[str, str | None] | None = None,
    when: tuple[str, ...] | None = None,
    or_own: bool = False,
) -> Any:
    """Declare a nested mapping of the configuration with its own keys.

    Args:
        model: The mapping's keys.
        training: False if no key below matters to a resume.
        idle: As for `key`, for all keys below.
        when: The key that chooses the section, and the values for which the section is read.
        or_own: True if a reference as value of the choosing key may also read the section.
    """
    extra: dict[str, Any] = {} if training else {"training": False}
    if idle is not None:
        extra["idle"] = dict(idle)
    if when is not None:
        extra |= {"when": list(when), "or_own": or_own}
    return Field(default_factory=model, description=description, json_schema_extra=extra or None)


def idle_everywhere(why: str) -> dict[str, str | None]:
    """Return the argument `idle` of `key` for a key without effect on any backbone, with the reason `why`."""
    return {EVERYWHERE: why}


def list_values(values: Iterable[str], stores: Mapping[str, PluginPart]) -> list[str]:
    """Return the values of a `when`, where SHARED_STORES stands for the names of all stores that processes share."""
    shared = [name for name, part in stores.items() if part.schemes]
    return [name for value in values for name in (shared if value == SHARED_STORES else [value])]


def read_notes(field: FieldInfo) -> dict[str, Any]:
    """Return the notes made on the field by `key` or `section`."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def describe_field(field: FieldInfo) -> str:
    """Return the description of a key or section, in which `{names}` is replaced by the known parts of its kind."""
    text, notes = field.description or "", read_notes(field)
    kind: NamedKind | None = next((notes[note] for note in ("part", "named", "lists") if note in notes), None)
    return text.replace("{names}", ", ".join(find_parts(kind))) if kind is not None else text


def find_section_model(field: FieldInfo) -> type[Section] | None:
    """Return the model of a nested section's keys, or None for a plain key."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def find_entry_model(field: FieldInfo) -> type[Section] | None:
    """Return the section model of the values in a mapping such as `lora.adapters`, or None for any other key."""
    values = get_args(field.annotation)[1:] if get_origin(field.annotation) is dict else ()
    return next((value for value in values if isinstance(value, type) and issubclass(value, Section)), None)


class IdleReason(NamedTuple):
    """The reason why a key has no effect."""

    source: tuple[str, ...]
    """Path of the section or key declaring the reason."""
    why: str


class RequiredChoice(NamedTuple):
    """A choice required for an effect of a key."""

    source: tuple[str, ...]
    key: str
    values: tuple[str, ...]
    or_own: bool
    """True if a reference to the user's code also counts."""


@lru_cache(maxsize=4)
def walk_keys(model: type[Section]) -> tuple[tuple[tuple[str, ...], FieldInfo, dict], ...]:
    """Return every plain key below `model` in order: path, field and notes, with the notes of its sections.

    In the notes, `path` is the path, `idle` maps SERVE or EVERYWHERE to an `IdleReason` or None, and `when` lists each
    `RequiredChoice`.
    """
    return tuple(_walk_section(model, (), {"idle": {}, "when": []}))


def _walk_section(
    model: type[Section], prefix: tuple[str, ...], inherited: dict[str, Any]
) -> Iterator[tuple[tuple[str, ...], FieldInfo, dict]]:
    """Yield path, field and notes of every plain key below `model`; see `walk_keys`.

    Args:
        prefix: Path of the section.
        inherited: Notes that the section passes on to its keys.
    """
    for name, field in model.model_fields.items():
        path, field_notes = (*prefix, name), read_notes(field)
        notes = {**inherited, **field_notes, "path": path}
        if inherited.get("training") is False:
            notes["training"] = False
        notes["idle"] = inherited["idle"] | {
            scope: reason and IdleReason(path, reason) for scope, reason in field_notes.get("idle", {}).items()
        }
        notes["when"] = inherited["when"] + (
            [
                RequiredChoice(
                    path, field_notes["when"][0], tuple(field_notes["when"][1:]), field_notes.get("or_own", False)
                )
            ]
            if "when" in field_notes
            else []
        )
        nested = find_section_model(field)
        if nested is None:
            yield path, field, notes
        else:
            yield from _walk_section(nested, path, notes)


def _contains_type(annotation: Any, wanted: type) -> bool:
    """Return True if an annotation is the type, or has it among its arguments, as in `int | None`."""
    return annotation is wanted or any(_contains_type(arg, wanted) for arg in get_args(annotation))


_PLAIN = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", dict: "mapping"}


def describe_type(annotation: Any) -> str:
    """Return a type annotation in words, such as "integer", "one of sync, async", "list of text", "text or null"."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is Any:
        return "anything"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"mapping of {', '.join(annotation.model_fields)}"
    if origin is Annotated:
        return describe_type(args[0])
    if str(origin) == "typing.Literal":
        return f"one of {', '.join(map(str, args))}" if len(args) > 1 else str(args[0])
    if origin in (list, tuple):
        return f"list of {describe_type(args[0])}" if args else "list"
    if origin is dict:
        return "mapping"
    if args:
        return " or ".join(describe_type(arg) for arg in args)
    return getattr(annotation, "__name__", str(annotation))
