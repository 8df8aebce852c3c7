"""What C code refers to, and nothing of Python counts: it lives as long as the process.

At its end the interpreter clears the modules one after the other. Objects of other modules can still reach what is here
then, and C code calls back until the very end.
"""

from __future__ import annotations

import ctypes
from typing import TypeVar

_T = TypeVar("_T")

_one_more = ctypes.pythonapi.Py_IncRef
_one_more.restype, _one_more.argtypes = None, [ctypes.py_object]


def immortal(thing: _T) -> _T:
    """Returns thing, and keeps it as long as the process lives."""
    _one_more(thing)
    return thing
