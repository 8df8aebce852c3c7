"""The devices of a node as people want to read them, from what the drivers answered (OpenCL 3.0 §4.2)."""

from __future__ import annotations

import base64
from typing import Any, Dict, List

from .errors import Protocol

_PLATFORM_NAME = 0x0902
_TYPE, _UNITS, _MEMORY, _NAME, _VENDOR, _DRIVER, _VERSION = 0x1000, 0x1002, 0x101F, 0x102B, 0x102C, 0x102D, 0x102F
_TYPES = ((4, "gpu"), (2, "cpu"), (8, "accelerator"))  # bits of CL_DEVICE_TYPE


def listed(snapshot: Any) -> "List[Dict[str, Any]]":
    """The devices of a reply to Devices, with the fields of `tendril devices --json`. Raises Protocol."""
    found: List[Dict[str, Any]] = []
    try:
        for platform in snapshot["platforms"] or ():
            for device in platform["devices"] or ():
                info = device["info"]
                kind = _number(info, _TYPE)
                found.append({
                    "index": len(found), "name": _text(info, _NAME),
                    "platform": _text(platform["info"], _PLATFORM_NAME),
                    "type": next((name for bit, name in _TYPES if kind & bit), "other"),
                    "memory_bytes": _number(info, _MEMORY), "compute_units": _number(info, _UNITS),
                    "uuid": str(device.get("uuid", "")), "vendor": _text(info, _VENDOR),
                    "version": _text(info, _VERSION), "driver": _text(info, _DRIVER),
                    "in_place": bool(device.get("in_place")),
                })
                if device.get("in_place_reason"):
                    found[-1]["in_place_reason"] = str(device["in_place_reason"])
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise Protocol("the reply to Devices is no list of platforms: %r" % e) from None
    return found


def _raw(info: "Dict[str, str]", key: int) -> bytes:
    return base64.b64decode(info.get(str(key), "") or "", validate=True)


def _number(info: "Dict[str, str]", key: int) -> int:
    return int.from_bytes(_raw(info, key), "little")


def _text(info: "Dict[str, str]", key: int) -> str:
    return _raw(info, key).split(b"\0")[0].decode("utf-8", "replace").strip()
