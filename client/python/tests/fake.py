"""A small daemon in this process that speaks ipc/PROTOCOL.md, for tests without the real one."""

import array
import collections
import json
import os
import socket
import struct
import tempfile
import threading

HEADER = struct.Struct("<IHHQ")
SEGMENT = 1 << 20
PATIENCE = 300  # seconds a busy machine may take: it ends a test that would wait for ever, and no other


def descriptors():
    """This process's open descriptors. Those of earlier tests may be closed at any time: compare sets, not numbers."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            st = os.fstat(int(fd))
        except OSError:  # the directory's own, or one that was closed meanwhile
            continue
        found.add((int(fd), st.st_dev, st.st_ino))
    return found


class FakeDaemon:
    """Serves any number of connections until close().

    hook(kind, payload) may return what to send instead of a reply: raw bytes, or raw bytes and descriptors.
    """

    def __init__(self, hook=None):
        self.hook = hook
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "s")
        self.objects = {}  # id -> dict
        self.released = []
        self.aborted = []
        self.forgotten = []
        self.connections = 0
        self.lock = threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.live = []
        self.holds = []  # of each live connection: references by id
        self.faults = []  # of its own: what ended a connection, but for the client's end
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        """Ends it. Raises what ended one of its connections, if that was a fault of the fake, or of the hook."""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        with self.lock:
            for c in self.live:
                try:
                    c.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            faults, self.faults = self.faults, []
        self.dir.cleanup()
        if faults:
            raise faults[0]

    def wait(self, condition, seconds=PATIENCE):
        with self.lock:
            return self.lock.wait_for(condition, seconds)

    def _accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
                self.live.append(c)
            threading.Thread(target=self._serve, args=(c,), daemon=True).start()

    def _serve(self, c):
        state = {"seen": set(), "own": None, "holds": collections.Counter()}
        with self.lock:
            self.holds.append(state["holds"])
        try:
            while True:
                head = self._read(c, HEADER.size)
                size, kind, _, number = HEADER.unpack(head)
                payload = self._read(c, size)
                raw = self.hook(kind, payload) if self.hook else None
                if raw is not None:
                    raw, fds = raw if isinstance(raw, tuple) else (raw, [])
                    raw = raw.replace(b"<request>", struct.pack("<Q", number))
                    c.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
                    continue
                with self.lock:
                    self._handle(c, state, kind, number, payload)
                    self.lock.notify_all()
        except (ConnectionError, EOFError):  # the client is gone
            pass
        except BaseException as e:
            if not isinstance(e, OSError) or c.fileno() >= 0:  # else a test has closed it
                with self.lock:
                    self.faults.append(e)
        finally:
            c.close()
            with self.lock:
                state["holds"].clear()
                self.lock.notify_all()

    def drop_unnamed(self):
        """Closes the memory of objects without a name: nobody has them any more."""
        with self.lock:
            for o in self.objects.values():
                if not o["name"] and o["fd"] is not None:
                    os.close(o["fd"])
                    o["fd"] = None

    def held(self):
        """How many references the clients have."""
        with self.lock:
            return sum(sum(holds.values()) for holds in self.holds)

    @staticmethod
    def _read(c, n):
        out = b""
        while len(out) < n:
            part = c.recv(n - len(out))
            if not part:
                raise EOFError
            out += part
        return out

    def _reply(self, c, kind, number, payload, fd=None, flags=0):
        raw = HEADER.pack(len(payload), kind | 0x8000, flags | (1 if fd is not None else 0), number) + payload
        if fd is None:
            c.sendall(raw)
        else:
            c.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])

    def _error(self, c, number, code, text):
        raw = text.encode()
        body = struct.pack("<HH", code, len(raw)) + raw
        c.sendall(HEADER.pack(len(body), 0xFFFF, 0, number) + body)

    def _ref(self, c, state, o):
        fresh = o["segment"] not in state["seen"]
        state["seen"].add(o["segment"])
        ref = struct.pack("<QQQ", o["segment"], o["bytes"], 0)
        return ref, (o["fd"] if fresh else None)

    def _find(self, payload):
        key, n = payload[:16], struct.unpack_from("<H", payload, 16)[0]
        name = payload[18:18 + n].decode()
        if any(key):
            return self.objects.get(key), payload[18 + n:]
        return next((o for o in self.objects.values() if o["name"] == name and o["sealed"]), None), payload[18 + n:]

    def _handle(self, c, state, kind, number, payload):
        if kind == 1:
            text = lambda s: struct.pack("<H", len(s)) + s.encode()
            self._reply(c, 1, number, struct.pack("<H", 1) + text("fake") + bytes(16) + text("uid:%d" % os.getuid())
                        + struct.pack("<IQ", os.getpid(), 1 << 30))
        elif kind == 2:
            size, life, _ = struct.unpack_from("<QBB", payload)
            n = struct.unpack_from("<H", payload, 10)[0]
            name = payload[12:12 + n].decode()
            meta = payload[16 + n:]
            if size > 1 << 30:
                return self._error(c, number, 7, "the store has no room for %d bytes" % size)
            o = {"id": os.urandom(16), "name": name, "size": size, "class": life, "meta": meta, "sealed": False,
                 "segment": len(self.objects) + 1, "bytes": max(4096, -(-size // 4096) * 4096)}
            o["fd"] = os.memfd_create("fake")
            os.ftruncate(o["fd"], o["bytes"])
            self.objects[o["id"]] = o
            state["holds"][o["id"]] += 1
            ref, fd = self._ref(c, state, o)
            self._reply(c, 2, number, o["id"] + ref, fd)
        elif kind == 3:
            o = self.objects.get(payload[:16])
            if o is None:
                return self._error(c, number, 3, "no object " + payload[:16].hex())
            o["sealed"] = True
            self._reply(c, 3, number, b"")
        elif kind == 4:
            o, _ = self._find(payload)
            if o is None:
                return self._error(c, number, 3, "no such object")
            state["holds"][o["id"]] += 1
            ref, fd = self._ref(c, state, o)
            self._reply(c, 4, number, o["id"] + ref + struct.pack("<QB", o["size"], o["class"])
                        + struct.pack("<I", len(o["meta"])) + o["meta"], fd)
        elif kind == 5:
            self.released.append(payload)
            state["holds"][payload[:16]] -= 1
        elif kind == 7:
            self.aborted.append(payload)
            o = self.objects.get(payload[:16])
            if o is None:  # a hook made it up
                return self._error(c, number, 3, "no object " + payload[:16].hex())
            if o["sealed"]:
                return self._error(c, number, 6, "the object is sealed already")
            state["holds"][payload[:16]] -= 1
            self._reply(c, 7, number, b"")
        elif kind == 13:
            number = struct.unpack("<Q", payload)[0]
            state["seen"].discard(number)
            self.forgotten.append(number)
        elif kind == 14:
            numbers = [o["segment"] for o in self.objects.values() if o["fd"] is None and o["segment"] in state["seen"]]
            self._reply(c, 14, number, struct.pack("<I%dQ" % len(numbers), len(numbers), *numbers))
        elif kind == 8:
            for o in self.objects.values():
                self._reply(c, 8, number, json.dumps([self._info(o)]).encode(), flags=4)
            self._reply(c, 8, number, b"[]")
        elif kind == 93:
            keys = [payload[at:at + 16] for at in range(2, len(payload), 24)]
            for key in keys:
                state["holds"][key] += key in self.objects
            self._reply(c, 93, number, payload[:2] + bytes(key in self.objects for key in keys))
        elif kind in (10, 11):
            self._reply(c, kind, number, b"{}")
        else:
            self._error(c, number, 10, "the fake does not do %d" % kind)

    def _info(self, o):
        return {"id": o["id"].hex(), "name": o["name"], "kind": "host", "class": "named", "state": "sealed",
                "size_bytes": o["size"], "unknown_to_clients": 1}


def frame(kind, payload, flags=0, size=None):
    """Raw bytes of a reply. The server fills in the request number."""
    return struct.pack("<IHH", len(payload) if size is None else size, kind, flags) + b"<request>" + payload
