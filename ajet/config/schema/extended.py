"""Build the model of a configuration with keys added to its sections by plug-ins.

Invariant: the model of a section with added keys is a subclass of the kernel's section and of the plug-in's model.
Kernel code sees the kernel's section. Plug-in code reads its keys typed by `PluginKeys.of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from ajet.config.plugins import AddedKeys, list_added_keys
from ajet.config.schema.base import Section, find_section_model
from ajet.config.schema.experiment import AjetConfig
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from typing import Self


class PluginKeys(Section):
    """Keys added to a section by a plug-in. The plug-in's descriptor names the section's path (`ConfigKeys`)."""

    @classmethod
    def of(cls, config: AjetConfig) -> Self:
        """Return the section of a configuration with the plug-in's keys. Raise LookupError without the plug-in."""
        own_section = next((section for section in _list_sections(config) if isinstance(section, cls)), None)
        if own_section is None:
            raise LookupError(f"no plug-in adds the keys of {cls.__name__}")
        return own_section


def config_model(*, shipped: bool = False) -> type[AjetConfig]:
    """Return `AjetConfig` with the keys of all plug-ins, or of the shipped plug-ins.

    Raises:
        ConfigError: Two plug-ins add the same key, or a plug-in names a missing section.
    """
    return _extend_model(list_added_keys(shipped=shipped))


@lru_cache(maxsize=4)
def _extend_model(added: tuple[AddedKeys, ...]) -> type[AjetConfig]:
    model: type[AjetConfig] = AjetConfig
    for each in added:
        model = _add_keys_at(model, each.path.split(".") if each.path else [], each)
    return model


def _add_keys_at(model: type[Any], path: Sequence[str], added: AddedKeys) -> type[Any]:
    """Return a subclass of a section's model with the keys at a path below."""
    if not path:
        duplicates = sorted(set(model.model_fields) & set(added.model.model_fields))
        if duplicates:
            raise ConfigError(
                f"Two plug-ins add the key {'.'.join(filter(None, ['ajet', added.path, duplicates[0]]))}.",
                where=f"{_find_owner(model, duplicates[0])} and {added.plugin}",
                do="uninstall one of the two plug-ins",
            )
        return create_model(model.__name__, __base__=(added.model, model), __doc__=model.__doc__)
    name, *rest = path
    field = model.model_fields.get(name)
    section = find_section_model(field) if field is not None else None
    if field is None or section is None:
        raise ConfigError(
            f"The plug-in {added.plugin} adds keys to the section ajet.{added.path}, which does not exist.",
            do="update the plug-in, or uninstall it",
        )
    extended = _add_keys_at(section, rest, added)
    replaced = Field(default_factory=extended, description=field.description, json_schema_extra=field.json_schema_extra)
    fields: dict[str, Any] = {name: (extended, replaced)}
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def _find_owner(model: type[Any], key: str) -> str:
    """Return the module declaring a key of a section."""
    return next(each.__module__ for each in reversed(model.__mro__) if key in getattr(each, "__annotations__", {}))


def _list_sections(section: Section) -> Iterator[Section]:
    yield section
    for name, field in type(section).model_fields.items():
        if find_section_model(field) is not None:
            yield from _list_sections(getattr(section, name))
