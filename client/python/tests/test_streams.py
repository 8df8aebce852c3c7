"""Streams, objects that several processes fill, and composites, against the real daemon."""

import asyncio
import gc
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import tendril
from tendril import wire

from .fake import PATIENCE
from .relay import Relay
from .test_daemon import WithDaemon, _link, until

try:
    import numpy as np
except ImportError:
    np = None


def segments():
    """How many descriptors of segments this process has."""
    return len([fd for fd in os.listdir("/proc/self/fd") if "memfd:tendril" in _link(fd)])


def stays_taken(*locked):
    """Whether one stays so. The background thread takes locks for a moment."""
    try:
        until(lambda: not any(look() for look in locked), "all are free")
    except AssertionError:
        return True
    return False


class Streams(WithDaemon):
    def both(self, name, **options):
        other = tendril.connect(self.daemon.socket)
        self.addCleanup(other.close)
        writer = self.store.writer(name, **options)
        reader = other.reader(name, existing=True)
        self.addCleanup(reader.close)
        self.addCleanup(writer.close)
        return writer, reader

    def test_a_finalizer_pushes_the_last_frame(self):
        """In a garbage collection of a cycle that has the writer, and the client."""
        class Logs:
            def __init__(self, socket, reconnect):
                self.store = tendril.connect(socket, reconnect=reconnect)
                self.writer = self.store.writer("s-last")
                self.itself = self

            def __del__(self):
                try:
                    self.writer.push(b"last")
                    self.writer.end()
                except BaseException as e:
                    failed.append(e)

        failed = []
        for reconnect in True, False:
            logs = Logs(self.daemon.socket, reconnect)
            with self.store.reader("s-last", existing=True) as reader:
                del logs
                gc.collect()
                self.assertEqual(failed, [])
                self.assertEqual([f.bytes() for f in reader], [b"last"])

    def test_an_end_that_is_dropped_is_closed(self):
        """Also a reader whose pop was interrupted and waits on. What its frame holds is no longer asked for."""
        store = tendril.connect(self.daemon.socket)
        self.addCleanup(store.close)
        users = lambda: len(self.store.streams("s-dropped")[0]["users"])
        writer = self.store.writer("s-dropped", keep=True)
        self.addCleanup(writer.close)
        writer.push(b"frame")
        reader = store.reader("s-dropped")
        frame = reader.pop()
        self.assertEqual(users(), 2)
        del reader
        until(lambda: users() == 1, "the reader's end")
        self.assertEqual(frame.bytes(), b"frame")
        reader = store.reader("s-dropped")
        body = reader._body() + struct.pack("<I", wire.wait_ms(None))
        store._connection().forgo(store._connection().begin(wire.STREAM_POP, body, reader._decode, lambda p: None))
        other = store.writer("s-dropped")
        self.assertEqual(users(), 3)
        del reader, other
        until(lambda: users() == 1, "the end of both")
        store.ping()

    def test_frames_in_order_through_a_small_stream(self):
        writer, reader = self.both("s-order", frames=3)

        def produce():
            for i in range(100):
                if i % 3 == 0:
                    writer.push(b"%d" % i, meta={"i": i})
                elif i % 3 == 1:
                    draft = writer.create(8 + i)
                    draft.data[:8] = b"%8d" % i
                    writer.push(draft)
                else:
                    writer.push(self.store.put(b"%d" % i))
            writer.end()

        thread = threading.Thread(target=produce)
        thread.start()
        seen = []
        for frame in reader:
            self.assertEqual(frame.number, len(seen) + 1)
            if frame.number % 3 == 1:
                self.assertEqual(frame.meta, {"i": frame.number - 1})
            seen.append(int(frame.bytes()[:8]))
            frame.release()
        thread.join()
        self.assertEqual(seen, list(range(100)))
        with self.assertRaises(tendril.Ended):
            reader.pop()
        reader.close()
        writer.close()
        until(lambda: not self.store.streams("s-order"), "the stream's end")

    @unittest.skipIf(np is None, "no NumPy")
    def test_arrays(self):
        writer, reader = self.both("s-arrays")
        writer.push(np.arange(12, dtype="f4").reshape(3, 4))
        image = writer.empty((4, 5, 3))
        image[:] = 9
        writer.push(image)
        del image
        self.assertEqual(reader.pop().numpy().tolist(), np.arange(12).reshape(3, 4).tolist())
        array = reader.pop(PATIENCE).numpy()
        self.assertEqual((array.shape, int(array.sum()), array.flags.writeable), ((4, 5, 3), 9 * 60, False))

    def test_waits_and_bounds(self):
        writer, reader = self.both("s-full", frames=1)
        with self.assertRaises(tendril.Timeout):
            reader.pop(0)
        with self.assertRaises(tendril.Timeout):
            reader.pop(0.02)
        writer.push(b"1")
        second = writer.create(1)
        second.data[:] = b"2"
        with self.assertRaises(tendril.Timeout):
            writer.push(second, timeout=0)
        first = reader.pop()
        self.assertEqual(first.bytes(), b"1")
        writer.push(second, timeout=0)  # the same frame again
        with self.assertRaises(tendril.Sealed):
            writer.push(second)
        reader.unpop(first)
        self.assertEqual([reader.pop(PATIENCE).bytes(), reader.pop(PATIENCE).bytes()], [b"1", b"2"])
        told, = self.store.streams("s-full")
        self.assertEqual((told["name"], told["pushed"]), ("s-full", 2))
        with self.assertRaises(tendril.Exists):
            self.store.writer("s-full", new=True)
        with self.assertRaises(tendril.NotFound):
            self.store.reader("s-none", existing=True)
        for bad in (-1, 65537):
            with self.assertRaises(tendril.Invalid):
                self.store.writer("s-bad", frames=bad)

    def test_drop_oldest(self):
        writer, reader = self.both("s-drop", frames=2, drop_oldest=True)
        for i in range(5):
            writer.push(b"%d" % i)
        frames = [reader.pop(0) for _ in range(2)]
        self.assertEqual([(f.number, f.bytes()) for f in frames], [(4, b"3"), (5, b"4")])

    def test_abort_and_removal(self):
        writer, reader = self.both("s-abort")
        with self.assertRaises(ZeroDivisionError):
            with writer:
                writer.push(b"x")
                1 // 0
        with self.assertRaises(tendril.Aborted):
            reader.pop()
        writer, reader = self.both("s-removed")
        self.store.remove_stream("s-removed")
        with self.assertRaises(tendril.Aborted):
            reader.pop()
        with self.assertRaises(tendril.Aborted):
            writer.push(b"x")

    def test_an_interrupted_pop_loses_no_frame(self):
        code = """
import signal, sys, tendril
store = tendril.connect()
reader = store.reader("s-int", existing=True)
def once(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise KeyboardInterrupt
signal.signal(signal.SIGUSR1, once)
try:
    print("ready", flush=True)
    reader.pop()
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
frame = reader.pop(300)
print(frame.number, frame.bytes().decode(), flush=True)
"""
        writer = self.store.writer("s-int")
        env = dict(self.daemon.env, PYTHONPATH=os.pathsep.join(sys.path))
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        try:
            self.assertEqual(child.stdout.readline(), "ready\n")
            # Most likely it waits after a moment. If not, the outcome is the same. As in interrupted, until it is seen.
            while not select.select([child.stdout], [], [], 0.1)[0]:
                child.send_signal(signal.SIGUSR1)
            self.assertEqual(child.stdout.readline(), "interrupted\n")
            writer.push(b"first")
            writer.push(b"second")
            child.stdin.write("\n")
            child.stdin.flush()
            number, text = child.stdout.readline().split()
            self.assertIn((number, text), (("1", "first"), ("2", "second")))
            self.assertEqual(child.wait(PATIENCE), 0)
            if number == "2":  # the first one went to the interrupted pop, and back
                with self.store.reader("s-int") as again:
                    self.assertEqual(again.pop(PATIENCE).bytes(), b"first")
        finally:
            child.kill()
            child.communicate()
            writer.close()

    def test_a_released_frame_does_not_come_again(self):
        code = """
import os, signal, tendril
store = tendril.connect()
reader = store.reader("s-had", existing=True)
frame = reader.pop(300)
had = store.get(frame.id)  # another reference, which stays
reader.unpop(frame)
reader.pop(300).release()
store.streams("s-had")
os.kill(os.getpid(), signal.SIGKILL)
"""
        with self.store.writer("s-had") as writer:
            writer.push(b"first")
            writer.push(b"second")
            env = dict(self.daemon.env, PYTHONPATH=os.pathsep.join(sys.path))
            child = subprocess.run([sys.executable, "-c", code], env=env, timeout=PATIENCE)
            self.assertEqual(child.returncode, -signal.SIGKILL)
            until(lambda: len(self.store.streams("s-had")[0]["users"]) == 1, "the reader's end")
            with self.store.reader("s-had") as reader:
                self.assertEqual(reader.pop(PATIENCE).bytes(), b"second")

    def test_a_killed_writer(self):
        writer = self.store.writer("s-dead")
        code = ("import tendril, time; w = tendril.connect().writer('s-dead'); w.push(b'1'); print(flush=True);"
                "time.sleep(3600)")
        env = dict(self.daemon.env, PYTHONPATH=os.pathsep.join(sys.path))
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        child.stdout.readline()
        reader = self.store.reader("s-dead")
        writer.close()
        child.kill()
        child.communicate()
        self.assertEqual(reader.pop(PATIENCE).bytes(), b"1")
        with self.assertRaises(tendril.Aborted):
            reader.pop(PATIENCE)
        reader.close()

    def test_a_daemon_that_went_away(self):
        from .test_daemon import Daemon
        daemon = Daemon()
        try:
            store = tendril.connect(daemon.socket)
            writer, reader = store.writer("s"), store.reader("s")
            writer.push(b"x")
            frame = reader.pop()
            daemon.process.kill()
            daemon.process.wait()
            with self.assertRaises(tendril.Disconnected):
                reader.pop()
            with self.assertRaises(tendril.Disconnected):
                writer.push(b"y")
            self.assertEqual(frame.bytes(), b"x")
            writer.close()
            reader.close()
            store.close()
        finally:
            daemon.close()


class Late(WithDaemon):
    """Answers that come after the program has stopped waiting for them."""

    def setUp(self):
        super().setUp()
        self.relay = Relay(self.daemon.socket)
        self.addCleanup(self.relay.close)
        self.late = tendril.connect(self.relay.path, reconnect=False)
        self.addCleanup(self.late.close)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))

    def interrupted(self, call, when):
        """Calls, and interrupts it once, as Ctrl-C does, when the function when returns. Python does not see a signal
        that comes just before the thread waits in the kernel: so it is sent until it is seen.
        """
        came = threading.Event()

        def first(*_):
            if not came.is_set():
                came.set()
                raise KeyboardInterrupt

        def interrupt():
            try:
                when()
            finally:
                while not came.is_set():
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                    came.wait(0.1)

        signal.signal(signal.SIGUSR1, first)
        thread = threading.Thread(target=interrupt)
        with self.assertRaises(KeyboardInterrupt):
            thread.start()
            call()
        thread.join()

    def told(self, name, field):
        return self.store.streams(name)[0][field]

    def popped_late(self, name):
        """A writer, and a reader whose interrupted pop has a frame on its way, which the relay holds."""
        writer = self.store.writer(name, keep=True)
        self.addCleanup(writer.close)
        reader = self.late.reader(name, existing=True)

        def pushed():
            until(lambda: self.told(name, "waiting_readers") == 1, "the pop")
            self.relay.hold("replies")
            writer.push(b"frame")
            until(lambda: self.told(name, "popped") == 1, "the frame's way out")

        return reader, pushed

    def test_close_behind_an_interrupted_pop(self):
        reader, pushed = self.popped_late("l-pop")
        self.interrupted(reader.pop, pushed)
        self.relay.let_go_after("replies", tendril.wire.STREAM_CLOSE, tendril.wire.STREAM_CANCEL)
        reader.close()
        with self.store.reader("l-pop") as again:
            frame = again.pop(PATIENCE)
            self.assertEqual((frame.number, frame.bytes()), (1, b"frame"))

    def test_close_behind_a_cancelled_pop(self):
        reader, pushed = self.popped_late("l-apop")

        async def cancelled():
            task = asyncio.ensure_future(reader.apop())
            await asyncio.get_running_loop().run_in_executor(None, pushed)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        self.relay.let_go_after("replies", tendril.wire.STREAM_CLOSE, tendril.wire.STREAM_CANCEL)
        reader.close()
        with self.store.reader("l-apop") as again:
            frame = again.pop(PATIENCE)
            self.assertEqual((frame.number, frame.bytes()), (1, b"frame"))

    def test_a_cancelled_task_that_is_kept(self):
        """Its frame had come. It goes back although somebody has the task, and what the task waited for."""
        with self.store.writer("l-kept", keep=True) as writer:
            writer.push(b"frame")
            kept = []

            async def cancelled():
                reader = self.late.reader("l-kept", existing=True)
                kept.append(asyncio.ensure_future(reader.apop()))
                await asyncio.sleep(0)
                until(lambda: self.told("l-kept", "popped") == 1 and not reader._live._pending, "the reply")
                await asyncio.sleep(0)
                kept.extend(o for o in gc.get_objects() if isinstance(o, asyncio.Future))
                kept[0].cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await kept[0]
                reader.close()

            asyncio.run(cancelled())
            self.late.streams()
            with self.store.reader("l-kept") as again:
                frame = again.pop(PATIENCE)
                self.assertEqual((frame.number, frame.bytes()), (1, b"frame"))

    def test_close_behind_an_interrupted_pop_without_a_frame(self):
        writer = self.store.writer("l-none")
        self.addCleanup(writer.close)
        reader = self.late.reader("l-none", existing=True)
        self.interrupted(reader.pop, lambda: until(lambda: self.told("l-none", "waiting_readers") == 1, "the pop"))
        reader.close()
        self.assertEqual(self.told("l-none", "waiting_readers"), 0)

    def interrupted_unsent(self, live, call):
        """Calls, and interrupts it when its request is noted and not sent."""
        lock = live._sending

        class Interrupted:
            def __enter__(self):
                live._sending = lock
                raise KeyboardInterrupt

            def __exit__(self, *_):
                raise AssertionError("never entered")

            acquire, release, locked = lock.acquire, lock.release, lock.locked  # for who only looks

        live._sending = Interrupted()
        with self.assertRaises(KeyboardInterrupt):
            call()

    def test_close_behind_a_pop_that_was_not_sent(self):
        """Nobody answers it: the close does not wait for that."""
        reader = self.late.reader("l-unsent")
        self.interrupted_unsent(reader._live, reader.pop)
        self.assertEqual(reader._live.unwanted(reader._decode), [])
        closing = threading.Thread(target=reader.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        self.assertFalse(closing.is_alive())

    def test_abort_of_a_push_that_was_not_sent(self):
        writer = self.late.writer("l-unpushed")
        for made in (lambda: self.late.create(5), lambda: self.late.put(b"frame")):
            whole = made()
            key = whole.id
            self.interrupted_unsent(writer._live, lambda: writer.push(whole))
            (whole.abort if isinstance(whole, tendril.Draft) else whole.release)()
            del whole
            gc.collect()
            self.late.streams()
            until(lambda: not any(o.id == key.hex() for o in self.store.objects()), "the frame's end")

    def test_an_interrupt_leaves_no_lock_taken(self):
        """Whichever call into C it comes behind, in a pop or a release."""
        # What is raised in the end of a lease is shown, and lost.
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: None
        writer = self.store.writer("l-locks", frames=1000)
        self.addCleanup(writer.close)
        interrupts, taken, before = 0, [], segments()
        while True:
            writer.push(b"frame")
            store = tendril.connect(self.daemon.socket, reconnect=False)
            reader = store.reader("l-locks", existing=True)
            live, calls = reader._live, 0

            def behind(frame, event, function):
                nonlocal calls
                if event == "c_return" and frame.f_code.co_filename.endswith(("connection.py", "threading.py")):
                    calls += 1
                    if calls > interrupts:
                        sys.setprofile(None)
                        at.append("%s:%d, %s" % (frame.f_code.co_name, frame.f_lineno, function.__name__))
                        raise KeyboardInterrupt

            at = []
            try:
                sys.setprofile(behind)
                reader.pop().release()
                sys.setprofile(None)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            if not at:
                break
            interrupts += 1
            if stays_taken(live._sending.locked, live._turn_lock.locked, lambda: live._reading is not None):
                taken.append(at[0])  # it cannot be closed
            else:
                store.close()
        store.close()
        self.assertGreater(interrupts, 10)
        self.assertEqual(taken, [])
        self.assertLess(segments() - before, 4)  # the writer's among them

    def interrupted_at(self, step, call):
        """Calls, and interrupts it at one of its steps: where a function of the client begins, or behind a call into C.
        There the interpreter looks for signals. Returns where that was, None if there are not so many steps, and what
        the call returned.
        """
        steps, at = 0, []

        def profile(frame, event, function):
            nonlocal steps
            if event not in ("call", "c_return") or at or "tendril" not in frame.f_code.co_filename.split(os.sep)[-2:]:
                return
            steps += 1
            if steps > step:
                at.append("%s:%d, %s" % (frame.f_code.co_name, frame.f_lineno, getattr(function, "__name__", event)))
                raise KeyboardInterrupt

        value = None
        try:
            sys.setprofile(profile)
            value = call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return (at[0] if at else None), value

    def test_no_interrupt_loses_a_frame(self):
        """Whichever step of a pop it comes at: what was pushed is what pops returned and what is left, in order, each
        frame once."""
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: None
        writer = self.store.writer("l-each", frames=1000, keep=True)
        self.addCleanup(writer.close)
        other = self.store.reader("l-each")
        self.addCleanup(other.close)
        step, pushed, wrong, before = 0, 0, [], segments()
        while True:
            writer.push(b"one")
            writer.push(b"two")
            pushed += 2
            store = tendril.connect(self.daemon.socket, reconnect=False)
            reader = store.reader("l-each", existing=True)
            at, frame = self.interrupted_at(step, reader.pop)
            got = [frame.number] if frame is not None else []
            del frame
            if stays_taken(reader._live._sending.locked, reader._live._turn_lock.locked):
                self.fail("a lock is taken after " + at)
            store.close()
            until(lambda: len(self.told("l-each", "users")) == 2, "the end of the interrupted connection")
            left = []
            while self.told("l-each", "frames"):
                left.append(other.pop(0).number)
            if got + left != [pushed - 1, pushed]:
                wrong.append((at, got, left))
                if len(wrong) > 3:
                    break
            if at is None:
                break
            step += 1
        self.assertEqual(wrong, [])
        self.assertGreater(step, 50)
        self.assertLess(segments() - before, 4)  # the writer's among them

    def test_abort_of_an_interrupted_push_that_happened(self):
        """A reader of the same connection keeps what it popped."""
        writer, reader = self.late.writer("l-push"), self.late.reader("l-push")
        for made in (lambda: self.late.create(5), lambda: self.late.put(b"frame")):
            whole, frames = made(), []
            thread = threading.Thread(target=lambda: frames.append(reader.pop(PATIENCE)))
            thread.start()
            until(lambda: self.told("l-push", "waiting_readers") == 1, "the pop")
            self.relay.hold("requests")
            self.interrupted(lambda: writer.push(whole), lambda: self.relay.await_request(tendril.wire.STREAM_PUSH))
            (whole.abort if isinstance(whole, tendril.Draft) else whole.release)()
            del whole
            gc.collect()
            self.relay.let_go("requests")
            thread.join()
            self.late.streams()  # what was sent before is done
            self.assertEqual(self.store.stat(frames[0].id).refs, 1)
            frames.pop().release()

    def test_abort_of_an_interrupted_push_that_fails(self):
        """The memory goes back when the answer has come."""
        writer = self.late.writer("l-full", frames=1)
        writer.push(b"first")
        for made in (lambda: self.late.create(5), lambda: self.late.put(b"frame")):
            whole = made()
            key = whole.id
            self.relay.hold("requests")
            self.interrupted(lambda: writer.push(whole, timeout=0),
                             lambda: self.relay.await_request(tendril.wire.STREAM_PUSH))
            (whole.abort if isinstance(whole, tendril.Draft) else whole.release)()
            del whole
            gc.collect()
            self.relay.let_go("requests")
            self.late.streams()
            until(lambda: not any(o.id == key.hex() for o in self.store.objects()), "the frame's end")

    def test_an_interrupted_push_again(self):
        """Whoever pushes again learns that the first push happened, and holds nothing."""
        writer, reader = self.late.writer("l-again", frames=1), self.store.reader("l-again")
        self.addCleanup(reader.close)
        draft = self.late.create(5)
        self.relay.hold("replies")
        self.interrupted(lambda: writer.push(draft), lambda: until(lambda: self.told("l-again", "pushed") == 1, "it"))
        self.relay.let_go("replies")
        self.late.streams()
        with self.assertRaises(tendril.Sealed):
            writer.push(draft)
        frame = reader.pop(PATIENCE)
        draft.abort()
        self.late.streams()
        self.assertEqual(self.store.stat(frame.id).refs, 1)


class Fills(WithDaemon):
    def test_several_fill_one_object(self):
        draft = self.store.create(1 << 20, "f-shared", shared=True, meta={"who": "all"})
        draft.data[:4] = b"mine"
        helpers = [tendril.connect(self.daemon.socket) for _ in range(3)]
        parts = [h.fill("f-shared") for h in helpers]
        with self.assertRaises(tendril.Timeout):
            draft.seal_filled(0.02)
        for i, part in enumerate(parts):
            self.assertEqual((part.id, part.meta), (draft.id, {"who": "all"}))
            view = part.data
            view[1000 * (i + 1):1000 * (i + 1) + 4] = b"par%d" % i
            with self.assertRaises(tendril.Invalid):
                part.done()
            del view
            part.done()
            part.done()
        with draft.seal_filled() as whole:
            self.assertEqual(whole.data[:4].tobytes(), b"mine")
            for i, helper in enumerate(helpers):
                with helper.get("f-shared") as seen:
                    self.assertEqual(seen.data[1000 * (i + 1):1000 * (i + 1) + 4].tobytes(), b"par%d" % i)
        self.store.delete("f-shared")
        for helper in helpers:
            helper.close()

    def test_somebody_ends_in_the_middle(self):
        draft = self.store.create(100, "f-broken", shared=True)
        helper = tendril.connect(self.daemon.socket)
        part = helper.fill("f-broken")
        helper.close()
        with self.assertRaises(tendril.Aborted):
            draft.seal_filled(PATIENCE)
        draft.seal_filled(PATIENCE, despite=True).release()
        del part
        self.store.delete("f-broken")
        with self.assertRaises(tendril.NotFound):
            self.store.fill("f-nothing")


class Composites(WithDaemon):
    def test_tree(self):
        left, right = self.store.put(b"left"), self.store.put(b"right")
        inner = self.store.compose({"right": right}, meta={"kind": "inner"})
        outer = self.store.compose({"left": left, "inner": inner.id}, "c-outer", labels={"a": "b"})
        for o in (left, right, inner, outer):
            o.release()
        del left, right, inner, outer, o
        gc.collect()
        with self.store.tree("c-outer") as tree:
            self.assertEqual(sorted(tree.members), ["inner", "left"])
            self.assertEqual(tree["left"].object.bytes(), b"left")
            self.assertEqual(tree["inner"].object.meta, {"kind": "inner"})
            self.assertEqual(tree["inner"]["right"].object.bytes(), b"right")
            self.assertEqual(self.store.stat("c-outer").labels, {"a": "b"})
            key = tree["inner"]["right"].object.id
        self.store.delete("c-outer")

        def gone():
            try:
                self.store.stat(key)
            except tendril.NotFound:
                return True
            return False

        until(gone, "the members' end")
        with self.assertRaises(tendril.Invalid):
            self.store.compose({})
        with self.assertRaises(tendril.NotFound):
            self.store.compose({"x": key})


if __name__ == "__main__":
    unittest.main()
