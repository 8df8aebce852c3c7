"""Stands between a client and the daemon, and holds what goes either way, so that a test says what comes late."""

import array
import os
import socket
import struct
import tempfile
import threading

from .fake import PATIENCE

_HEADER = struct.Struct("<IHHQ")


class Relay:
    """Serves connections to the daemon at path, until close(). Bytes and descriptors pass unchanged."""

    def __init__(self, path):
        self._daemon = path
        self._dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._dir.name, "s")
        self._changed = threading.Condition()
        self._held = {"requests": False, "replies": False}
        self._seen = []  # kinds of the requests that came from clients
        self._sockets = []
        self._threads = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(4)
        self._begin(self._accept)

    def hold(self, way):
        """From now on what comes that way ("requests" or "replies") waits here."""
        self._set(way, True)

    def let_go(self, way):
        self._set(way, False)

    def let_go_after(self, way, *kinds):
        """let_go when the client has sent a request of one of these kinds since the last hold. Returns at once."""
        def wait():
            with self._changed:
                self._changed.wait_for(lambda: set(kinds) & set(self._seen), PATIENCE)
            self.let_go(way)

        self._begin(wait)

    def await_request(self, kind):
        """Waits until the client has sent a request of this kind since the last hold. It may be held."""
        with self._changed:
            if not self._changed.wait_for(lambda: kind in self._seen, PATIENCE):
                raise AssertionError("request %d did not come" % kind)

    def close(self):
        for way in self._held:
            self.let_go(way)
        for s in [self._listener] + self._sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(PATIENCE)
        for s in [self._listener] + self._sockets:
            s.close()
        self._dir.cleanup()

    def _set(self, way, held):
        with self._changed:
            self._held[way] = held
            if held:
                self._seen = []
            self._changed.notify_all()

    def _begin(self, what, *args):
        thread = threading.Thread(target=what, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            daemon = socket.socket(socket.AF_UNIX)
            daemon.connect(self._daemon)
            self._sockets += [client, daemon]
            self._begin(self._pass, "requests", client, daemon)
            self._begin(self._pass, "replies", daemon, client)

    def _pass(self, way, source, target):
        unread = b""
        while True:
            try:
                raw, said, _, _ = source.recvmsg(1 << 16, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
            except OSError:
                raw = b""
            if not raw:
                break
            files = array.array("i")
            for level, kind, data in said:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    files.frombytes(data[:len(data) // files.itemsize * files.itemsize])
            with self._changed:
                if way == "requests":
                    unread = self._note(unread + raw)
                    self._changed.notify_all()
                self._changed.wait_for(lambda: not self._held[way])
            try:
                sent = target.sendmsg([raw], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if files else [])
                target.sendall(raw[sent:])
            except OSError:
                break
            finally:
                for fd in files:
                    os.close(fd)
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _note(self, raw):
        """Notes the kinds of whole requests. Returns what is left."""
        while len(raw) >= _HEADER.size:
            size, kind, _, _ = _HEADER.unpack_from(raw)
            if len(raw) < _HEADER.size + size:
                break
            self._seen.append(kind)
            raw = raw[_HEADER.size + size:]
        return raw
