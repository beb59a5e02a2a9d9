"""Attributes of a workflow's class and objects, as in any class of Python: pydantic would refuse most of them.

Invariant: `max_turns = 3` in the class needs no annotation and may be set on `self`; a list, dict or set that stands in
the class is each object's own, as far as its elements are not changed, so that no attempt's history reaches the next;
`__init__` need not call `super().__init__()`. What is annotated, or begins with an underscore, stays pydantic's.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo, ModelPrivateAttr

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as ModelType
else:
    ModelType = type(BaseModel)


class PlainAttributes(ModelType):
    """Makes classes whose attributes need no annotation: one that a base declares keeps that one's, any other is the
    class's own."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """The class."""
        annotations = namespace.setdefault("__annotations__", {})
        for attribute, value in list(namespace.items()):
            if attribute.startswith("_") or attribute in annotations or _is_pydantics(value, attribute):
                continue
            declared = [fields[attribute] for base in bases if attribute in (fields := _fields(base))]
            annotations[attribute] = declared[0].annotation if declared else ClassVar
            if not declared and isinstance(value, (list, dict, set)):
                namespace[attribute] = _OwnCopy(attribute, value)
        return super().__new__(mcs, name, bases, namespace, **kwargs)


class _OwnCopy:
    """A list, dict or set of a class: an object gets its copy when it first asks for it, the class itself has it."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self._value if owner is None else vars(owner).setdefault(self._name, copy(self._value))


def prepare(made: BaseModel) -> None:
    """Give a new object what pydantic's `__init__` would: for a class whose own does not call it."""
    defaults: dict[str, Any] = {}
    for name, field in type(made).model_fields.items():
        if not field.is_required():
            defaults[name] = field.get_default(call_default_factory=True, validated_data=defaults)
    hidden = {name: each.get_default() for name, each in type(made).__private_attributes__.items()}
    object.__setattr__(made, "__dict__", defaults)
    object.__setattr__(made, "__pydantic_fields_set__", set())
    object.__setattr__(made, "__pydantic_extra__", {})
    object.__setattr__(made, "__pydantic_private__", hidden)


def _fields(base: type) -> dict[str, FieldInfo]:
    return base.model_fields if issubclass(base, BaseModel) else {}


def _is_pydantics(value: Any, attribute: str) -> bool:
    """Whether pydantic takes it unannotated (functions, properties, validators), or says best itself what it lacks."""
    return attribute == "model_config" or hasattr(value, "__get__") or isinstance(value, (FieldInfo, ModelPrivateAttr))
