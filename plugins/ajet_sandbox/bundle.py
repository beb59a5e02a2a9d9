"""The programs of `inside` as a single value, started by a bare Python: no file is bound or installed inside.

Invariant: an interpreter of the same version gets compiled code, any other interpreter the source.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.schema import frames

_PACKAGE = "ajet_sandbox.inside"
_MODULES = ("files", "kernel", "usage", "call", "session", "piped", "resident")
_GO = """\
import marshal,os,sys
def go(settings,parts):
    class Loader:
        def find_spec(self,name,path=None,target=None):
            if name in parts:
                return type(sys.__spec__)(name,self,is_package=not parts[name])
        def create_module(self,spec): return None
        def exec_module(self,module): exec(parts[module.__name__],module.__dict__)
    sys.meta_path.insert(0,Loader())
    from ajet_sandbox.inside.resident import main
    main(settings)
"""
START = f"{_GO}with open(%d,'rb') as file: given=marshal.load(file)\ngo(*given)\n"
"""Code for `python -c`, with a placeholder for the descriptor to read from."""
START_PIPED = f"""\
{_GO}
def whole(size):
    got=b''
    while len(got)<size:
        more=os.read(0,size-len(got))
        if not more: sys.exit(1)
        got+=more
    return got
go(*marshal.loads(whole(int.from_bytes(whole(4),'big'))))
"""
"""The same for standard input, with a length of four bytes first."""


def pack_bundle(settings: Mapping[str, Any], *, compiled: bool) -> bytes:
    """Pack the settings and the programs."""
    return marshal.dumps((dict(settings), _load_modules(compiled)), 2)


@lru_cache(maxsize=2)
def _load_modules(compiled: bool) -> dict[str, Any]:
    above = ["ajet", "ajet.schema", "ajet_sandbox", _PACKAGE]
    parts: dict[str, Any] = dict.fromkeys(above, "")
    folder = Path(__file__).parent / "inside"
    files = {f"{_PACKAGE}.{name}": folder / f"{name}.py" for name in _MODULES}
    for name, file in {frames.__name__: Path(frames.__file__), **files}.items():
        text = file.read_text(encoding="utf-8")
        where = f"<sandbox {file.stem}>"
        parts[name] = compile(text, where, "exec", dont_inherit=True) if compiled else text
    return parts


def is_same_version(magic: bytes) -> bool:
    """Return True if an interpreter with the magic number can read the current interpreter's bytecode."""
    return magic == importlib.util.MAGIC_NUMBER and sys.implementation.name == "cpython"
