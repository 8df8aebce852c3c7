"""The buffer protocol for classes written in Python, before Python 3.12 brought __buffer__ (PEP 688).

Exporter is a base class whose slot of the buffer protocol calls __buffer__. PyType_FromSpec makes it, as a C extension
would. Where __buffer__ is Python's own, and outside of CPython, it is object.

A failure of __buffer__ cannot be raised here: functions of C say that a bytes-like object is wanted, or SystemError.
For the commonest failure, an object that was released, released gives the object's class afterwards.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict

from .immortal import immortal

FORMAT = 4  # a flag of requests: the format of the elements is wanted (PyBUF_FORMAT)


class _Slot(ctypes.Structure):
    """PyType_Slot."""

    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    """PyType_Spec."""

    _fields_ = [("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int),
                ("flags", ctypes.c_uint), ("slots", ctypes.POINTER(_Slot))]


_BF_GETBUFFER = 1  # typeslots.h
_BASETYPE, _VERSION_TAG = 1 << 10, 1 << 18  # Py_TPFLAGS_BASETYPE; the other is Py_TPFLAGS_DEFAULT


def _new_exporter() -> Any:
    """Makes the class."""
    get_buffer = ctypes.pythonapi.PyObject_GetBuffer
    get_buffer.restype, get_buffer.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]

    def fill(exporter: Any, view: int, flags: int) -> int:
        """Fills the Py_buffer at view, which then keeps what __buffer__ returned."""
        try:
            return int(get_buffer(exporter.__buffer__(flags), view, flags))
        except BaseException:
            return -1

    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(fill)
    slots = (_Slot * 2)(_Slot(_BF_GETBUFFER, ctypes.cast(function, ctypes.c_void_p)), _Slot(0, None))
    spec = _Spec(b"tendril.exporter.Exporter", 0, 0, _BASETYPE | _VERSION_TAG, slots)
    immortal((function, slots, spec))  # the class refers to them, and its objects may outlive this module
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Spec)]
    return make(spec)


_released: Dict[type, Any] = {}


def released(kind: type, why: Callable[[Any], None]) -> Any:
    """A class for instances of kind whose buffer protocol raises what why(instance) raises. Always the same for a kind.

    Its slot is PyObject_AsFileDescriptor: that calls the method fileno, and passes on what it raises, as -1.
    """
    found = _released.get(kind)
    if found is None:
        function = ctypes.cast(ctypes.pythonapi.PyObject_AsFileDescriptor, ctypes.c_void_p)
        slots = (_Slot * 2)(_Slot(_BF_GETBUFFER, function), _Slot(0, None))
        spec = _Spec(("%s.%s" % (kind.__module__, kind.__name__)).encode(), 0, 0, _BASETYPE | _VERSION_TAG, slots)
        immortal((slots, spec))
        make = ctypes.pythonapi.PyType_FromSpecWithBases
        make.restype, make.argtypes = ctypes.py_object, [ctypes.POINTER(_Spec), ctypes.py_object]
        found = _released[kind] = make(spec, (kind,))
        found.fileno = why
    return found


if TYPE_CHECKING or sys.version_info >= (3, 12) or sys.implementation.name != "cpython":
    Exporter = object
else:
    Exporter = _new_exporter()
