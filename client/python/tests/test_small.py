"""Small objects: one message puts them, and their releases go with other messages."""

import os
import socket
import unittest
from unittest import mock

import tendril
from tendril import connection, wire

from .fake import frame
from .test_client import WithFake
from .test_daemon import Daemon, WithDaemon


def requests_of(do):
    """The kinds of the requests that do makes. Of segments that are not used any more, any thread may tell."""
    kinds, call = [], connection.Connection.call

    def spy(self, kind, *args, **more):
        if kind != wire.SWEEP:
            kinds.append(kind)
        return call(self, kind, *args, **more)
    with mock.patch.object(connection.Connection, "call", spy):
        do()
    return kinds


class Puts(WithDaemon):
    def test_one_message(self):
        store = self.store
        for how in ({}, {"name": "small"}, {"name": "small", "replace": True}, {"ttl": 60}, {"labels": {"a": "b"}},
                    {"meta": {"unit": "m"}}, {"lifetime": "ephemeral"}):
            for size in (0, 1, 100, wire.MAX_PUT):
                if how.get("name"):
                    how = dict(how, name="small/%d" % size)
                data = bytes(range(256)) * (size // 256) + bytes(size % 256)
                made = []
                self.assertEqual(requests_of(lambda: made.append(store.put(data, **how))), [wire.PUT])
                with made[0] as o, store.get(o.id) as again:
                    self.assertEqual((o.bytes(), again.bytes(), again.meta), (data, data, how.get("meta")))
                    info = store.stat(o)
                    self.assertEqual((info.name, info.labels), (how.get("name", ""), how.get("labels", {})))
                    self.assertEqual(info.expires != "", "ttl" in how)
        self.assertEqual(requests_of(lambda: store.dump([1, "two"])), [wire.PUT])

    def test_what_takes_more(self):
        for data, how in ((bytes(wire.MAX_PUT + 1), {}), (b"x", {"strict": True}), (b"x", {"checksum": True}),
                          (b"x", {"lifetime": "persisted"})):
            kinds = requests_of(lambda: self.store.put(data, **how).release())
            self.assertNotIn(wire.PUT, kinds)
            self.assertIn(wire.SEAL, kinds)

    def test_errors(self):
        self.store.put(b"taken", "taken").release()
        with self.assertRaises(tendril.Exists):
            self.store.put(b"x", "taken")
        with self.assertRaises(tendril.Invalid):
            self.store.put(b"x", "no\nname")
        with self.assertRaises(tendril.Invalid):
            self.store.put(b"x", "long" * 100)
        self.assertEqual(self.store["taken"].bytes(), b"taken")

    def test_what_is_released_is_used_again(self):
        status = self.store.status()["store"]
        for _ in range(3000):
            self.store.put(bytes(1000)).release()
        after = self.store.status()["store"]
        self.assertLess(after["charged_bytes"] - status["charged_bytes"], 4 << 20)
        self.assertLess(after["segments"] - status["segments"], 4)


class Gets(WithDaemon):
    def test_who_asks_is_known(self):
        """A get asks the kernel for nothing but to send and to receive."""
        self.store.put(b"x", "little").release()
        with mock.patch("os.getpid") as asked:
            for _ in range(10):
                with self.store.get("little") as o:
                    self.assertEqual(o.bytes(), b"x")
        self.assertEqual(asked.mock_calls, [])


class Handovers(unittest.TestCase):
    """A daemon that takes over keeps what clients held for them, for a while."""

    def test_what_is_released_on_a_broken_connection(self):
        daemon = Daemon()
        self.addCleanup(daemon.close)
        store = tendril.connect(daemon.socket)
        self.addCleanup(store.close)
        for size in (100, 1 << 20):
            held = [store.put(bytes(size), "held/%d" % i, replace=True) for i in range(10)]
            kept = store.get("held/0")
            daemon.hand_over()
            with tendril.connect(daemon.socket) as other:
                self.assertEqual(other.stat("held/1").refs, 1)
                while held:
                    held.pop().release()
                # No request of this client follows. Without one the references stayed for minutes.
                while [other.stat("held/%d" % i).refs for i in range(10)] != [1] + [0] * 9:
                    pass
                self.assertEqual(len(kept.bytes()), size)
                kept.release()
                while other.stat("held/0").refs:
                    pass

    def test_no_client_comes_back_that_was_told_not_to(self):
        daemon = Daemon()
        self.addCleanup(daemon.close)
        for how in ({"reconnect": False}, {"background": False}):
            store = tendril.connect(daemon.socket, **how)
            self.addCleanup(store.close)
            held = store.put(b"x")
            daemon.hand_over()
            held.release()
            self.assertFalse(store._returns)


class Unconfirmed(WithFake):
    """A release that left may not have been read when the daemon ended."""

    def lose(self):
        """Ends the connection, as a daemon that hands over does. Returns the ids that the next connection claims."""
        claimed = []

        def hook(kind, payload):
            if kind != wire.RECLAIM:
                return None
            claimed.extend(payload[at:at + 16] for at in range(2, len(payload), 24))
            return frame(kind | 0x8000, payload[:2] + b"\2" * len(claimed))
        self.fake.hook = hook
        with self.fake.lock:
            for live in self.fake.live:
                live.shutdown(socket.SHUT_RDWR)
        self.store.status()
        return claimed

    def test_a_release_that_nothing_confirms(self):
        o = self.store.put(b"x", "n")
        key = bytes(o.id)
        o.release()
        self.store._connection().flush_late()
        self.assertTrue(self.fake.wait(lambda: self.fake.released == [key]))
        self.assertEqual(self.lose(), [key])
        self.assertTrue(self.fake.wait(lambda: self.fake.released == [key, key]))

    def test_a_later_reply_confirms_it(self):
        self.store.put(b"x", "n").release()
        self.store.status()
        kept = self.store.get("n")
        self.assertEqual(self.lose(), [bytes(kept.id)])


class OlderDaemons(WithFake):
    def test_create_fill_and_seal(self):
        kinds = requests_of(lambda: self.store.put(b"one", "n").release())
        self.assertIn(wire.PUT, kinds)
        kinds = requests_of(lambda: self.store.put(b"two").release())  # it knows now
        self.assertNotIn(wire.PUT, kinds)
        self.assertEqual(self.store.get("n").bytes(), b"one")


class Releases(WithDaemon):
    def test_a_burst_of_releases_arrives(self):
        """No request follows, so the background thread sends them, though it has nothing to unmap."""
        store = self.store
        kept = store.put(b"keeps the segment in use")
        with tendril.connect(self.daemon.socket) as other:
            for turn in range(3):
                keys = [store.put(b"%d" % i, "burst/%d" % i, replace=True).id for i in range(100)]
                del keys
                got = [store.get("burst/%d" % i) for i in range(100)]
                while got:
                    got.pop().release()
                while any(other.stat("burst/%d" % i).refs for i in range(100)):  # until the test is killed
                    pass
            self.assertEqual(other.stat(kept.id).refs, 1)

    def test_without_a_thread(self):
        with tendril.connect(self.daemon.socket, background=False) as store:
            with tendril.connect(self.daemon.socket) as other:
                for i in range(100):
                    store.put(b"x", "alone", replace=True).release()
                while other.stat("alone").refs:
                    pass

    def test_before_a_fork(self):
        store = self.store
        for i in range(50):
            store.put(b"x", "forked", replace=True).release()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with tendril.connect(self.daemon.socket) as other:
            while other.stat("forked").refs:
                pass


if __name__ == "__main__":
    unittest.main()
