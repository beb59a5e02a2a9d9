"""Text of a class, function or value: signature, fields, properties and public methods, a line each.

Main invariant: annotations are shown as the source writes them, so the text depends on no installed package, and items
carry the name by which users import them, so moving a definition changes nothing.
"""

from __future__ import annotations

import ast
import builtins
import enum
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import PurePath
from types import FunctionType
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_PROTOCOLS = {
    *("__call__", "__iter__", "__aiter__", "__len__", "__getitem__", "__contains__", "__getattr__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__"),
}
"""Special methods that users call by syntax."""
_FOREIGN = ("builtins", "pydantic", "abc", "typing", "enum")


def describe(name: str, value: Any) -> Iterator[str]:
    """Yield the lines of what users import as `name`."""
    if isinstance(value, type):
        yield from _describe_class(name, value)
    elif isinstance(value, FunctionType):
        yield _describe_function(name, value)
    elif isinstance(value, (str, int, float)):
        yield f"{name}: {type(value).__name__}"
    else:
        yield f"{name}: {_normalize(str(value))}"


def _describe_class(name: str, cls: type[Any]) -> Iterator[str]:
    raised = next((base.__name__ for base in cls.__mro__ if base in vars(builtins).values() and base is not object), "")
    yield f"{name}  [class{f' of {raised}' if raised else ''}]"
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] not in _FOREIGN]
    if issubclass(cls, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in cls)
        return
    members = {member: held for base in reversed(own) for member, held in vars(base).items()}
    fields = {field: line for base in reversed(own) for field, line in _list_fields(base)}
    if isinstance(cls.__init__, FunctionType) and not _has_generated_init(cls):
        yield _describe_function(name, cls.__init__, bound=True)
    for member, held in members.items():
        if (not member.startswith("_") or member in _PROTOCOLS) and member not in fields:
            yield from _describe_member(f"{name}.{member}", held)
    yield from (f"{name}.{line}" for line in fields.values())


def _has_generated_init(cls: type[Any]) -> bool:
    """True if the constructor takes the fields, or if there is none to call."""
    is_protocol = getattr(cls, "_is_protocol", False)
    return is_protocol or issubclass(cls, BaseModel) or cls.__init__.__code__.co_filename.startswith("<")


def _describe_member(name: str, held: Any) -> Iterator[str]:
    if isinstance(held, property) and held.fget is not None:
        yield f"{name}{_annotation(': ', inspect.signature(held.fget).return_annotation)}  [read only]"
    elif isinstance(held, (classmethod, staticmethod)):
        bound = isinstance(held, classmethod)
        kind = "class method" if bound else "static method"
        yield f"{_describe_function(name, held.__func__, bound=bound)}  [{kind}]"
    elif isinstance(held, FunctionType):
        yield _describe_function(name, held, bound=True)
    elif isinstance(getattr(held, "func", None), FunctionType):  # a cached property
        yield f"{name}{_annotation(': ', inspect.signature(held.func).return_annotation)}  [read only]"


def _list_fields(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, line) of each public field: annotated in the class, or assigned to `self` in `__init__`."""
    defaults, factories = dict[str, Any](vars(cls)), set[str]()
    if is_dataclass(cls):
        defaults |= {each.name: each.default for each in fields(cls)}
        factories = {each.name for each in fields(cls) if each.default_factory is not MISSING}
    elif issubclass(cls, BaseModel):
        defaults = {field: each.default for field, each in cls.model_fields.items()}
        factories = {field for field, each in cls.model_fields.items() if each.default_factory is not None}
    for field, annotation in inspect.get_annotations(cls).items():
        if field.startswith("_") or field == "model_config":
            continue
        default = defaults.get(field, MISSING)
        is_plain = default in (MISSING, PydanticUndefined) or inspect.ismemberdescriptor(default)
        text = " = made anew" if field in factories else "" if is_plain else f" = {_show_default(default)}"
        yield field, f"{field}{_annotation(': ', annotation)}{text}"
    if "__init__" in vars(cls) and isinstance(cls.__init__, FunctionType) and not issubclass(cls, BaseModel):
        for field in _list_assigned(cls.__init__):
            yield field, field


def _list_assigned(init: FunctionType) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
    except OSError:  # a generated one, of a dataclass
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("_"):
            yield from [node.attr] * (isinstance(node.value, ast.Name) and node.value.id == "self")


def _describe_function(name: str, function: Any, *, bound: bool = False) -> str:
    """`bound`: leave out the first parameter, which Python fills in."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[bound:]
    shown: list[str] = []
    kinds = inspect.Parameter
    for at, each in enumerate(parameters):
        if each.kind is kinds.KEYWORD_ONLY and not any(
            before.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL) for before in parameters[:at]
        ):
            shown.append("*")
        stars = "*" if each.kind is kinds.VAR_POSITIONAL else "**" if each.kind is kinds.VAR_KEYWORD else ""
        default = "" if each.default is kinds.empty else f" = {_show_default(each.default)}"
        shown.append(f"{stars}{each.name}{_annotation(': ', each.annotation)}{default}")
        if each.kind is kinds.POSITIONAL_ONLY and (
            at + 1 == len(parameters) or parameters[at + 1].kind is not kinds.POSITIONAL_ONLY
        ):
            shown.append("/")
    returned = _annotation(" -> ", signature.return_annotation)
    kind = "  [async]" if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    return f"{name}({', '.join(shown)}){'' if returned == ' -> None' else returned}{kind}"


def _annotation(before: str, annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return before + _normalize(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _show_default(default: Any) -> str:
    """Return a default as Python writes it; an object without such a form is named by its class."""
    if isinstance(default, PurePath):
        return f"Path({str(default)!r})"
    if default is None or isinstance(default, (str, bytes, int, float, tuple, list, dict)):
        return repr(getattr(default, "value", default))
    if isinstance(default, (set, frozenset)):
        return repr(sorted(default))
    return getattr(default, "__name__", f"{type(default).__name__}(...)")


def _normalize(text: str) -> str:
    """Return an annotation on one line, as every supported Python writes it."""
    return " ".join(text.replace("typing.", "").split())
