"""What a Python program expects of a store: dict, pickles, with blocks, processes, names."""

import json
import multiprocessing
import os
import pickle
import pwd
import subprocess
import unittest

import tendril

from .test_daemon import BIN, WithDaemon, until

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


def _sum_of(store, name):
    """Runs in another process."""
    with store.get(name) as found:
        return sum(found.data), os.getpid()


class LikeADict(WithDaemon):
    def test_items(self):
        store = self.store
        self.assertNotIn("grid", store)
        with self.assertRaises(KeyError) as caught:
            store["grid"]
        self.assertNotIn("'", str(caught.exception)[:1])  # a text, not the text in quotes
        with self.assertRaises(KeyError):
            del store["grid"]
        for value in (b"one", b"two"):
            store["grid"] = value
            self.assertIn("grid", store)
            self.assertEqual((store["grid"].bytes(), store["grid"].name), (value, "grid"))
        self.assertIn("grid", list(store))
        del store["grid"]
        self.assertNotIn("grid", store)
        with store.create(3, "open") as draft:
            self.assertNotIn("open", store)
            self.assertNotIn(draft, store)
            draft.data[:] = b"abc"
        self.assertIn("open", store)
        self.assertIn(store["open"], store)
        with self.assertRaises(tendril.Unstorable):
            store["open"] = "text"
        self.assertEqual(store["open"].bytes(), b"abc")

    def test_what_is_no_key_and_no_text(self):
        for call, says in ((lambda: self.store.get(5), "5 is no key"), (lambda: self.store.get(None), "None is no key"),
                           (lambda: self.store.delete(5.0), "5.0 is no key"),
                           (lambda: self.store.put(b"x", 5), "5 is no text"),
                           (lambda: self.store.put(b"x", labels={"a": 1}), "1 is no text"),
                           (lambda: self.store.list(prefix=3), "3 is no text")):
            with self.assertRaisesRegex(TypeError, says):
                call()
        made = self.store.put(b"x", "named")
        for call in (lambda: self.store.bind("named", "other"), lambda: self.store.compose({"a": "named"})):
            with self.assertRaisesRegex(tendril.Invalid, "'named' is no object id.*get"):
                call()
        self.store.update(made, ttl=600)
        for call in (lambda: self.store.put(b"x", ttl=-1), lambda: self.store.create(1, ttl=-1),
                     lambda: self.store.update("named", ttl=-1)):
            with self.assertRaisesRegex(tendril.Invalid, "-1 s"):
                call()
        self.assertTrue(self.store.stat("named").expires)

    def test_keys(self):
        for name in ("k/1", "k/2", "l"):
            self.store.put(b"x", name, replace=True).release()
        self.store.put(b"without a name", ttl=60).release()
        self.assertEqual(list(self.store.keys("k/")), ["k/1", "k/2"])
        self.assertEqual(set(self.store.keys()), set(self.store))
        self.assertGreaterEqual(set(self.store), {"k/1", "k/2", "l"})
        self.assertTrue(self.store)

    def test_another_machine(self):
        for server in ("gpubox:7433", "ssh://gpubox"):
            with self.assertRaisesRegex(tendril.Unsupported, "tendril --server %s" % server):
                tendril.connect(server)

    def test_replace(self):
        kept = self.store.put(b"first", "r")
        with self.assertRaises(tendril.Exists):
            self.store.put(b"second", "r")
        for how in ({}, {"lifetime": "named"}, {"ttl": 60}, {"strict": True}, {"labels": {"a": "b"}}):
            made = self.store.put(b"next", "r", replace=True, **how)
            self.assertEqual((self.store["r"].id, made.name), (made.id, "r"))
            made.release()
            self.assertEqual(self.store["r"].bytes(), b"next")  # the name holds it
        self.assertEqual(self.store.stat("r").labels, {"a": "b"})
        self.store.dump([1], "r", replace=True).release()
        self.assertEqual((self.store.load("r"), kept.bytes()), ([1], b"first"))
        with self.assertRaises(tendril.Invalid):
            self.store.put(b"x", replace=True)
        with self.assertRaises(tendril.Invalid):
            self.store.put(b"x", "no\nname", replace=True)
        until(lambda: [o.id for o in self.store.list() if o.name == "" and o.lifetime != "ttl"] == [str(kept.id)],
              "the end of all that was refused, and of an earlier test's objects")

    def test_replace_of_what_is_filled_in_place(self):
        for size in (3, 1 << 20):
            kept = self.store.put(b"first", "r", replace=True)
            for how in ({}, {"lifetime": "named"}, {"ttl": 60}, {"strict": True}, {"lifetime": "persisted"}):
                draft = self.store.create(size, "r", replace=True, **how)
                draft.data[:3] = b"abc"
                self.assertNotEqual(self.store["r"].id, draft.id)  # the seal takes the name, not the beginning
                made = draft.seal()
                self.assertEqual((self.store["r"].id, made.name), (made.id, "r"))
                made.release()
                found = self.store.stat("r")
                self.assertEqual((found.id, found.lifetime), (
                    str(draft.id), how.get("lifetime") or ("ttl" if "ttl" in how else "named")))
            self.assertEqual(kept.bytes(), b"first")
            kept.release()
        with self.store.create(1, "r", replace=True):
            self.store.put(b"between", "r", replace=True).release()
        self.assertEqual(self.store["r"].size, 1)
        for wrong in ({"name": ""}, {"name": "r", "shared": True}, {"name": "id:r"}):
            with self.assertRaises(tendril.Invalid):
                with self.store.create(1, replace=True, **wrong):
                    pass
        until(lambda: not [o for o in self.store.list(all=True) if o.name in ("", "id:r")
                           and o.lifetime not in ("ttl", "persisted")],
              "the end of all that was refused, and of an earlier test's objects")

    @unittest.skipIf(np is None, "NumPy is not installed")
    def test_replace_of_an_array(self):
        for n in (1, 2):
            with self.store.empty(n, "f4", "array", replace=True) as a:
                a[:] = n
        self.assertEqual(self.store["array"].load().tolist(), [2, 2])
        a = self.store.empty(3, "f4", "no\nname", replace=True)
        with self.assertRaises(tendril.Invalid):
            a.seal()
        self.assertFalse(a.flags.writeable)  # sealed, and released since nobody would find it
        with self.assertRaises(tendril.Sealed):
            a.seal()

    @unittest.skipIf(np is None, "NumPy is not installed")
    def test_empty_seals_at_the_end_of_a_block(self):
        with self.store.empty((2, 3), "f4", "filled") as a:
            a[:] = 1
        self.assertEqual(self.store["filled"].load().sum(), 6)
        with self.assertRaises(ValueError):
            a[:] = 2
        with self.assertRaises(ZeroDivisionError):
            with self.store.empty(3, name="never") as a:
                a[0] = 1 / 0
        del a
        self.store.put(b"free again", "never")
        with self.store.empty(3, name="sealed within") as a:
            a.seal()
        with self.store.empty(3, name="aborted within") as a:
            a.abort()
        self.assertNotIn("aborted within", self.store)


class Names(WithDaemon):
    def test_of_hexadecimal_digits(self):
        store, name = self.store, "00112233445566778899AABBCCDDEEFF"
        store.put(b"named", name).release()
        self.assertEqual(store[name].bytes(), b"named")
        self.assertEqual(store.get_many([name])[0].bytes(), b"named")
        self.assertEqual((store.stat(name).name, store.read(name)), (name, b"named"))
        with self.assertRaises(tendril.NotFound):
            store.get("id:" + name)
        with self.assertRaises(tendril.NotFound):
            store.get(tendril.ObjectID(name))
        with self.assertRaises(tendril.Timeout):
            store.get(name[::-1], timeout=0.01)

    def test_that_are_an_id(self):
        store = self.store
        with store.put(b"by id") as o:
            for key in (o.id, bytes(o.id), str(o.id), "id:%s" % o.id, store.stat(o).id):
                with store.get(key) as found:
                    self.assertEqual((found.bytes(), found.id), (b"by id", o.id))
            store.put(b"in the way", str(o.id)).release()
            self.assertEqual(store[str(o.id)].bytes(), b"in the way")  # a name, since an object has it
            for key in (o.id, "id:%s" % o.id, store.stat(o.id).id):
                self.assertEqual(store[key].bytes(), b"by id")
            store.delete(store.stat(o.id).id)
            self.assertIn(str(o.id), store)
        for key in ("id:", "id:zz", "id:00"):
            with self.assertRaises(tendril.Invalid):
                store.get(key)

    def test_names_that_none_can_have(self):
        """Half a character, as in a file's name that is no UTF-8, and what a key would take for an id."""
        store, half = self.store, "x\udcff"
        with store.put(b"there", "h-there") as there:
            for call in (lambda: store.put(b"v", half), lambda: store.get(half), lambda: half in store,
                         lambda: store.objects(half), lambda: store.put(b"v", "h-label", labels={"a": half}),
                         lambda: store.put(b"v", "h-label", labels={half: "a"}), lambda: store.writer(half),
                         lambda: store.put(b"v", "id:x"), lambda: store.put(bytes(1 << 20), "id:x"),
                         lambda: store.create(5, "id:" + "0" * 32), lambda: store.rename("h-there", "id:x"),
                         lambda: store.bind(there, "id:x"), lambda: store.compose({"a": there}, "id:x")):
                with self.assertRaises(tendril.Invalid):
                    call()
        del store["h-there"]

    def test_whom_to_share_with(self):
        me = pwd.getpwuid(os.getuid())
        with self.store.put(b"shared", "shared") as o:
            self.store.share(o, to=me.pw_name)
            self.store.unshare(o, to="uid:%d" % me.pw_uid)  # it was that one
            with self.assertRaises(tendril.NotFound):
                self.store.unshare(o, to=me.pw_name)
            for nobody in ("no such user", ":no such group"):
                with self.assertRaisesRegex(tendril.Invalid, "no such"):
                    self.store.share(o, to=nobody)


class Devices(WithDaemon):
    def test_as_the_command_shows_them(self):
        told = subprocess.run([BIN, "devices", "--json"], env=self.daemon.env, stdout=subprocess.PIPE, check=True)
        self.assertEqual(self.store.devices(), json.loads(told.stdout))

    def test_of_a_snapshot(self):
        from tendril import devices
        platform = {"info": {"2306": "UG9DTAA="}, "devices": [
            {"info": {"4096": "BAAAAAAAAAA=", "4127": "AAAAAAIAAAA=", "4098": "CAAAAA==", "4139": "R1BVAA=="},
             "in_place": False, "in_place_reason": "why", "uuid": "ab"}]}
        found, = devices.listed({"platforms": [platform]})
        self.assertEqual((found["index"], found["name"], found["platform"], found["type"]), (0, "GPU", "PoCL", "gpu"))
        self.assertEqual((found["memory_bytes"], found["compute_units"], found["vendor"]), (2 << 32, 8, ""))
        for nonsense in (3, {}, {"platforms": 3}, {"platforms": [3]}, {"platforms": [{"devices": [{}]}]},
                         {"platforms": [{"info": {}, "devices": [{"info": {"4096": "*"}}]}]}):
            with self.assertRaises(tendril.Protocol, msg=str(nonsense)):
                devices.listed(nonsense)


class Processes(WithDaemon):
    def test_a_client_travels(self):
        again = pickle.loads(pickle.dumps(self.store))
        self.addCleanup(again.close)
        self.assertIsNot(again, self.store)
        self.store["travels"] = bytes([1, 2, 3])
        self.assertEqual(again["travels"].bytes(), bytes([1, 2, 3]))
        for method in ("spawn", "forkserver", "fork"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                total, pid = pool.apply(_sum_of, (self.store, "travels"))
                self.assertEqual(total, 6)
                self.assertNotEqual(pid, os.getpid())

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_workers_of_a_data_loader(self):
        for i in range(8):
            self.store["sample/%d" % i] = np.full(3, i, "f4")
        for method in ("fork", "spawn", "forkserver"):
            loader = torch.utils.data.DataLoader(Samples(self.store), batch_size=2, num_workers=2,
                                                 multiprocessing_context=method)
            self.assertEqual([b[:, 0].tolist() for b in loader], [[0, 1], [2, 3], [4, 5], [6, 7]])


class Samples(torch.utils.data.Dataset if torch else object):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return 8

    def __getitem__(self, i):
        with self.store["sample/%d" % i] as found:
            return torch.from_numpy(np.array(found))


if __name__ == "__main__":
    unittest.main()
