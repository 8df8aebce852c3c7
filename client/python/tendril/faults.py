"""explain_faults: what a process writes to standard error before a write to a sealed object ends it.

A handler for SIGSEGV may run no Python, because the thread may hold any lock. faulthandler's handler is C, and says
where the program was. On x86-64 a few machine instructions before it say that the memory was a sealed object's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import platform
import signal
import struct
import threading
from typing import Any, Dict, List, Tuple

from .immortal import immortal

_SENTENCE = (b"tendril: this process wrote to a sealed object. Sealed objects never change, so they are mapped "
             b"read-only, and SIGSEGV follows: write before the seal, or to a copy.\n")

# rdi is the signal, rsi its siginfo_t. The code looks for si_addr in a table of ranges (begin, end), which ends with
# zeroes.
_CODE = (
    b"\x83\x7e\x08\x02"          # cmpl $SEGV_ACCERR, 8(%rsi)     si_code
    b"\x75\x48"                  # jne next
    b"\x48\x8b\x46\x10"          # mov 16(%rsi), %rax            si_addr
    b"\x48\xb9%(table)b"         # movabs table, %rcx
    b"\x4c\x8b\x01"              # look: mov (%rcx), %r8
    b"\x4d\x85\xc0"              # test %r8, %r8
    b"\x74\x32"                  # je next
    b"\x4c\x39\xc0"              # cmp %r8, %rax
    b"\x72\x06"                  # jb other
    b"\x48\x3b\x41\x08"          # cmp 8(%rcx), %rax
    b"\x72\x06"                  # jb found
    b"\x48\x83\xc1\x10"          # other: add $16, %rcx
    b"\xeb\xe7"                  # jmp look
    b"\x57\x56\x52"              # found: push %rdi, %rsi, %rdx
    b"\xb8\x01\x00\x00\x00"      # mov $__NR_write, %eax
    b"\xbf\x02\x00\x00\x00"      # mov $2, %edi                  standard error
    b"\x48\xbe%(text)b"          # movabs text, %rsi
    b"\xba%(bytes)b"             # mov bytes, %edx
    b"\x0f\x05"                  # syscall
    b"\x5a\x5e\x5f"              # pop %rdx, %rsi, %rdi
    b"\x48\xb8%(next)b"          # next: movabs next, %rax
    b"\xff\xe0"                  # jmp *%rax
)

_ENTRIES = 4096
_FREE = (1, 0)  # an entry that no address matches
_SA_SIGINFO, _SA_ONSTACK, _SA_NODEFER = 4, 0x08000000, 0x40000000


class _Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p)]


# No lock guards _mapped, _free and _at, because a mapping may end in a garbage collection. Each operation is atomic.
_mapped: Dict[int, int] = {}  # sizes in bytes by address, of mappings that are or may become read-only
_table: Any = None            # the table that the handler reads; like the handler it lives as long as the process
_free: List[int] = []         # free entries of the table
_at: Dict[int, int] = {}      # entries by address
_once = threading.Lock()


def entered(address: int, size: int) -> None:
    """From now on writes to [address, address+size) are explained."""
    _mapped[address] = size
    if _table is not None:
        _enter(address, size)


def left(address: int) -> None:
    """The range that begins at address is unmapped or writable again. Does nothing for an unknown address."""
    _mapped.pop(address, None)
    entry = _at.pop(address, None)
    if entry is not None:
        _set(entry, _FREE)
        _free.append(entry)


def _enter(address: int, size: int) -> None:
    try:
        entry = _free.pop()
    except IndexError:
        return  # the table is full: writes to this one are not explained
    _at[address] = entry
    _set(entry, (address, address + size))


def _set(entry: int, bounds: Tuple[int, int]) -> None:
    _table[2 * entry + 1] = 0  # no address matches while it changes
    _table[2 * entry], _table[2 * entry + 1] = bounds


def explain_faults() -> bool:
    """Installs a handler for SIGSEGV that explains a write to a sealed object before it ends the process.

    It writes a sentence, and where each thread was (faulthandler.enable), to standard error. Then the previous handler
    is called. For programs under development. With TENDRIL_EXPLAIN_FAULTS=1 in the environment the import of this
    package calls it. A second call does nothing. Any thread may call it.

    Returns False if the sentence cannot be written: on machines other than x86-64, and if the system allows no new
    code. Then faulthandler is enabled all the same.
    """
    global _table
    with _once:
        if _table is not None:
            return True
        if not faulthandler.is_enabled():
            faulthandler.enable(2)
        if platform.machine() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
            return False
        table = (ctypes.c_uint64 * (2 * _ENTRIES + 2))(*(_FREE * _ENTRIES), 0, 0)
        if not _install(table):
            return False
        _free.extend(range(_ENTRIES))
        _table = table
        for address, size in list(_mapped.items()):
            _enter(address, size)
        return True


def _install(table: Any) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    before = _Sigaction()
    if libc.sigaction(signal.SIGSEGV, None, ctypes.byref(before)) != 0 or not before.handler:
        return False
    text = ctypes.create_string_buffer(_SENTENCE)
    values = {b"table": ctypes.addressof(table), b"text": ctypes.addressof(text), b"next": before.handler}
    packed = {name: struct.pack("<Q", value) for name, value in values.items()}
    code = _CODE % {**packed, b"bytes": struct.pack("<I", len(_SENTENCE))}
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE)
    except OSError:
        return False
    page[:len(code)] = code
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if libc.mprotect(start, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        return False
    handler = _Sigaction(handler=start, flags=_SA_SIGINFO | _SA_ONSTACK | _SA_NODEFER)
    immortal((table, text, page))  # the handler's
    return bool(libc.sigaction(signal.SIGSEGV, ctypes.byref(handler), None) == 0)


def explain_if_asked() -> None:
    """Calls explain_faults if TENDRIL_EXPLAIN_FAULTS asks for it."""
    if os.environ.get("TENDRIL_EXPLAIN_FAULTS", "").lower() in ("1", "on", "yes", "true"):
        explain_faults()
