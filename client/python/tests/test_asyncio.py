"""Tasks that wait for objects, frames and events."""

import asyncio
import threading
import unittest

import tendril

from .fake import PATIENCE
from .test_daemon import Daemon, WithDaemon


class Tasks(WithDaemon):
    def run_all(self, *tasks):
        async def main():
            return await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        return asyncio.run(main())

    def test_get_waits(self):
        async def get(name):
            with await self.store.aget(name, timeout=None) as found:
                return found.bytes()

        async def put(count):
            for i in range(count):
                (await self.store.aput(b"%d" % i, "async/%d" % i)).release()
        before = threading.active_count()
        got = self.run_all(*(get("async/%d" % i) for i in range(200)), put(200))
        self.assertEqual(got[:-1], [b"%d" % i for i in range(200)])
        self.assertEqual(self.run_all(self.store.aload("async/7"))[0], b"7")
        self.assertLess(threading.active_count() - before, 20)  # not one for each

    def test_errors(self):
        for timeout, error in ((0, tendril.NotFound), (0.02, tendril.Timeout)):
            with self.assertRaises(error):
                self.run_all(self.store.aget("nobody", timeout))
        with self.assertRaises(tendril.Unstorable):
            self.run_all(self.store.aput("text"))

    def test_a_cancelled_task_holds_nothing(self):
        async def main():
            waits = [asyncio.ensure_future(self.store.aget("late", None)) for _ in range(5)]
            while self.store._connection()._unread < 5:
                await asyncio.sleep(0)
            for task in waits[1:]:
                task.cancel()
            (await self.store.aput(b"late", "late")).release()
            found = await waits[0]
            self.assertEqual([t.cancelled() for t in waits], [False] + 4 * [True])
            with tendril.connect(self.daemon.socket) as other:
                while (await asyncio.get_running_loop().run_in_executor(None, other.stat, "late")).refs != 1:
                    pass
            found.release()
        asyncio.run(main())

    def test_streams(self):
        writer, reader = self.store.writer("frames", frames=2), self.store.reader("frames")

        async def write():
            for i in range(50):
                await writer.apush(b"%d" % i)
            await writer.apush(b"too many")  # however long the reader takes for those before it
            with self.assertRaises(tendril.Timeout):
                for _ in range(3 + 50):
                    await writer.apush(b"too many", timeout=0.01)

        async def read(frames):
            for _ in range(frames):
                with await reader.apop() as frame:
                    yield frame.bytes()

        async def main():
            task = asyncio.ensure_future(write())
            self.assertEqual([f async for f in read(50)], [b"%d" % i for i in range(50)])
            await task
            writer.end()
            rest = [f.bytes() async for f in reader]
            self.assertEqual(set(rest), {b"too many"})
            with self.assertRaises(tendril.Ended):
                await reader.apop()
        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_a_cancelled_pop_takes_no_frame(self):
        writer, reader = self.store.writer("cancelled"), self.store.reader("cancelled")

        async def main():
            for _ in range(20):
                task = asyncio.ensure_future(reader.apop())
                await asyncio.sleep(0)
                writer.push(b"x")
                task.cancel()
                try:
                    (await task).release()
                except asyncio.CancelledError:
                    with await reader.apop(PATIENCE) as frame:
                        self.assertEqual(frame.bytes(), b"x")
            with self.assertRaises(tendril.Timeout):
                await reader.apop(0)
        asyncio.run(asyncio.wait_for(main(), PATIENCE))

    def test_watch(self):
        async def main():
            with self.store.watch("watched/") as events:
                with self.assertRaises(tendril.Timeout):
                    await events.anext(0.01)
                task = asyncio.ensure_future(events.anext())
                await asyncio.sleep(0)
                self.store.put(b"x", "watched/1").release()
                self.assertEqual((await task).name, "watched/1")
                self.store.delete("watched/1")
                async for event in events:
                    if event.kind == "gone":
                        break
        asyncio.run(asyncio.wait_for(main(), PATIENCE))


class NextDaemon(unittest.TestCase):
    def test_tasks_go_on(self):
        daemon = Daemon()
        self.addCleanup(daemon.close)
        store = tendril.connect(daemon.socket, patience=PATIENCE)
        self.addCleanup(store.close)

        async def main():
            with store.watch() as events:
                task = asyncio.ensure_future(store.aget("after", None))
                while store._connection()._unread < 1:
                    await asyncio.sleep(0)
                await asyncio.get_running_loop().run_in_executor(None, daemon.hand_over)
                self.assertEqual([(await events.anext()).kind, (await events.anext()).kind], ["disconnected", "lost"])
                (await store.aput(b"here", "after")).release()
                self.assertEqual((await task).bytes(), b"here")
                self.assertEqual((await events.anext()).name, "after")
        asyncio.run(asyncio.wait_for(main(), PATIENCE))


if __name__ == "__main__":
    unittest.main()
