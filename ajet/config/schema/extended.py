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
        """Return the section of a configuration that has the plug-in's keys, typed as this class.

        Raises:
            LookupError: The configuration was read without the plug-in.
        """
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
    """Return the settings' model with the keys that plug-ins add. Cached."""
    model: type[AjetConfig] = AjetConfig
    for added_keys in added:
        model = _add_keys_at(model, added_keys.path.split(".") if added_keys.path else [], added_keys)
    return model


def _add_keys_at(model: type[Any], path: Sequence[str], added: AddedKeys) -> type[Any]:
    """Return a subclass of a section's model that has the added keys in the section at `path` below it.

    Raises:
        ConfigError: There is no such section, or it has such a key already.
    """
    if not path:
        duplicates = sorted(set(model.model_fields) & set(added.model.model_fields))
        if duplicates:
            raise ConfigError(
                f"Two plug-ins add the key {'.'.join(filter(None, ['ajet', added.path, duplicates[0]]))}.",
                where=f"{_find_owner(model, duplicates[0])} and {added.plugin}",
                do="uninstall one of the two plug-ins",
            )
        return create_model(model.__name__, __base__=(added.model, model), __doc__=model.__doc__)
    name, *deeper_path = path
    field = model.model_fields.get(name)
    section_model = find_section_model(field) if field is not None else None
    if field is None or section_model is None:
        raise ConfigError(
            f"The plug-in {added.plugin} adds keys to the section ajet.{added.path}, which does not exist.",
            do="update the plug-in, or uninstall it",
        )
    extended = _add_keys_at(section_model, deeper_path, added)
    new_field = Field(
        default_factory=extended, description=field.description, json_schema_extra=field.json_schema_extra
    )
    fields: dict[str, Any] = {name: (extended, new_field)}
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


def _find_owner(model: type[Any], key: str) -> str:
    """Return the module of the plug-in, or of ajet, that declares a key of a section."""
    return next(base.__module__ for base in reversed(model.__mro__) if key in getattr(base, "__annotations__", {}))


def _list_sections(section: Section) -> Iterator[Section]:
    """Yield a section and all sections nested in it."""
    yield section
    for name, field in type(section).model_fields.items():
        if find_section_model(field) is not None:
            yield from _list_sections(getattr(section, name))
