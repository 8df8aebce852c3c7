"""The demonstration's other process: maps the published object, checks it, writes a PNG.

usage: show.py SOCKET NAME WIDTH HEIGHT SHA256 OUT.png
"""

import hashlib
import struct
import sys
import zlib

import tendril


def png(pixels, width, height):
    """An 8-bit grey PNG (RFC 2083) of width * height bytes."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + pixels[y * width:(y + 1) * width] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b"")


def main():
    socket, name, width, height, digest, out = sys.argv[1:]
    width, height = int(width), int(height)
    with tendril.connect(socket) as store, store.get(name, timeout=5) as edges:
        view = edges.data  # the memory that the kernel wrote
        if len(view) != width * height:
            sys.exit("%s has %d bytes, not %d x %d" % (name, len(view), width, height))
        if hashlib.sha256(view).hexdigest() != digest:
            sys.exit("%s is not what the native device computed" % name)
        with open(out, "wb") as f:
            f.write(png(view, width, height))
        print("mapped %d bytes read-only, equal to the native result; wrote %s" % (len(view), out))


main()
