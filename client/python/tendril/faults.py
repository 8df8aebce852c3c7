"""explain_faults: what a store to a sealed object says on standard error before it ends the process.

A handler for SIGSEGV may run no Python: the thread may hold any lock. faulthandler's is C, and tells where the program was. What was
stored to is told by a few machine instructions in front of it, on x86-64; where there can be none, faulthandler's words are all.
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

_SENTENCE = (b"tendril: this process wrote to a sealed object. Sealed objects never change, so they are mapped read-only, "
             b"and SIGSEGV follows: write before the seal, or to a copy.\n")

# rdi is the signal, rsi its siginfo_t. It looks for si_addr in a table of (first byte, one behind the last), which ends with zeroes.
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
_FREE = (1, 0)  # an entry in which nothing lies
_SA_SIGINFO, _SA_ONSTACK, _SA_NODEFER = 4, 0x08000000, 0x40000000


class _Sigaction(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


_mapped: Dict[int, int] = {}  # sizes by address, of what is or may be read-only
_table: Any = None            # what the handler looks at; it lives as long as the process, like the rest of it
_free: List[int] = []         # entries; list.append and pop are atomic, and a mapping may end within a garbage collection
_at: Dict[int, int] = {}      # entries by address
_once = threading.Lock()
_kept: List[Any] = []


def entered(address: int, size: int) -> None:
    """A store to [address, address+size) is to be explained."""
    _mapped[address] = size
    if _table is not None:
        _enter(address, size)


def left(address: int) -> None:
    """It is unmapped."""
    _mapped.pop(address, None)
    entry = _at.pop(address, None)
    if entry is not None:
        _set(entry, _FREE)
        _free.append(entry)


def _enter(address: int, size: int) -> None:
    try:
        entry = _free.pop()
    except IndexError:
        return  # so many are not explained
    _at[address] = entry
    _set(entry, (address, address + size))


def _set(entry: int, bounds: Tuple[int, int]) -> None:
    _table[2 * entry + 1] = 0  # nothing lies in it while it changes
    _table[2 * entry], _table[2 * entry + 1] = bounds


def explain_faults() -> bool:
    """Has a sentence, and where each thread was (faulthandler.enable), written to standard error before a store to a sealed object ends the process.

    For programs under development. TENDRIL_EXPLAIN_FAULTS=1 in the environment has the import of this package do it. A handler for SIGSEGV that
    was there before is called in the end. Returns False where the sentence cannot be said (other machines than x86-64, and
    where the system allows no new code); faulthandler is enabled there, too.
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
    _kept[:] = [table, text, page]
    return bool(libc.sigaction(signal.SIGSEGV, ctypes.byref(handler), None) == 0)


def explain_if_asked() -> None:
    """Does it where the environment says so."""
    if os.environ.get("TENDRIL_EXPLAIN_FAULTS", "").lower() in ("1", "on", "yes", "true"):
        explain_faults()
