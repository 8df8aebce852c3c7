"""What put takes and load gives back: exactly, or refused."""

import array
import ctypes
import unittest
import zlib

import tendril

from .test_daemon import WithDaemon

try:
    import numpy as np
except ImportError:
    np = None
try:
    import pandas
except ImportError:
    pandas = None
try:
    import pyarrow
except ImportError:
    pyarrow = None
try:
    import torch
except ImportError:
    torch = None


class Buffers(WithDaemon):
    def test_bytes(self):
        for value in (b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), ctypes.create_string_buffer(b"ab")):
            with self.store.put(value) as o:
                self.assertEqual((o.meta, bytes(o.load())), (None, bytes(value)))

    def test_types_without_numpy(self):
        cases = [(array.array(c, [1, 2, 3]), "%s%s%d" % ("|" if n == 1 else "<", k, n)) for c, k, n in (
            ("b", "i", 1), ("h", "i", 2), ("i", "i", 4), ("q", "i", 8), ("H", "u", 2), ("f", "f", 4), ("d", "f", 8))]
        cases += [((ctypes.c_int32 * 3)(1, 2, 3), "<i4"), (memoryview(bytes(6)).cast("B", (2, 3)), "|u1"),
                  ((ctypes.c_int32.__ctype_be__ * 3)(1, 2, 3), ">i4"), ((ctypes.c_bool * 2)(True, False), "|b1")]
        for value, dtype in cases:
            view = memoryview(value)
            with self.store.put(value) as o:
                self.assertEqual((o.meta["dtype"], o.shape, o.bytes()), (dtype, view.shape, view.tobytes()))

    def test_what_is_none(self):
        for value in ("text", [1, 2], 5, None, {"a": 1}, object()):
            with self.assertRaisesRegex(tendril.Unstorable, "dump") as caught:
                self.store.put(value)
            self.assertIsInstance(caught.exception, TypeError)
            self.assertIsInstance(caught.exception, ValueError)

    def test_an_object(self):
        o = self.store.put(b"abcd", meta={"dtype": "<u2", "mine": 1})
        with o, self.store.put(o, meta={"mine": 2}) as copy:
            self.assertNotEqual(o.id, copy.id)
            self.assertEqual((copy.bytes(), copy.meta), (b"abcd", {"dtype": "<u2", "mine": 2}))


class _Takes:
    def __init__(self, given, **more):
        self.given = given
        self.__dict__.update(more)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.given, dtype)


@unittest.skipIf(np is None, "NumPy is not installed")
class Arrays(WithDaemon):
    def check(self, value, exact=None):
        exact = value if exact is None else exact
        with self.store.put(value) as o:
            got = o.load()
            self.assertEqual((got.dtype, got.shape, o.dtype, o.shape), (exact.dtype, exact.shape) * 2)
            self.assertEqual(got.tobytes(), exact.tobytes())
            self.assertFalse(got.flags.writeable)
            again = np.asarray(o)  # by the buffer protocol, or __array__ where buffers do not have the dtype
            self.assertEqual((again.dtype, again.shape, again.tobytes()), (exact.dtype, exact.shape, exact.tobytes()))
            self.assertEqual((zlib.crc32(o), np.frombuffer(o, "u1").tobytes() if o.size else b""),
                             (zlib.crc32(o.data), o.bytes()))

    def test_as_buffer(self):
        for value, form in ((np.asfortranarray(np.ones((2, 3))), "d"), (np.arange(3, dtype=">i2"), ">h")):
            with self.store.put(value) as o:
                view = memoryview(o)
                self.assertEqual((view.format, view.shape, view.strides, view.readonly),
                                 (form, value.shape, value.strides, True))
                self.assertEqual(np.asarray(view).tobytes(), value.tobytes())
                del view

    def test_structured(self):
        point = [("x", "<i4"), ("y", ">f8", (2, 2)), ("s", "S3"), ("u", "<U2")]
        for dtype in (point, [("p", point), ("n", "u1")], [(("title", "t"), "i2")],
                      np.dtype([("a", "u1"), ("b", "f8")], align=True),
                      {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [8, 2], "itemsize": 20}):
            made = np.frombuffer(bytes(range(1, 1 + 3 * np.dtype(dtype).itemsize)), dtype)
            try:
                self.check(made)
            except tendril.Unstorable as e:
                self.assertIn("dump", str(e))
                self.assertIsInstance(dtype, dict, e)  # its fields do not lie in their order
        self.check(np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
                   np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]))

    def test_filled_in_place(self):
        made = self.store.empty(2, [("a", "i4"), ("b", "f8")], "structured")
        made["a"], made["b"] = [1, 2], [3, 4]
        made.seal().release()
        self.assertEqual(self.store.load("structured")["b"].tolist(), [3, 4])

    def test_kinds(self):
        for value in (np.arange(3) > 1, np.float32(2), np.array(["2020", "NaT"], "M8[Y]"), np.array([1, 2], "m8[ns]"),
                      np.array(["ab", ""]), np.zeros((2, 0)), np.broadcast_to(np.arange(3), (2, 3)),
                      np.arange(12).reshape(3, 4)[:, ::-1], np.arange(4, dtype=">c16"), np.array(b"abc\0d")):
            self.check(np.asarray(value))
        self.check(memoryview(np.ones((2, 3), "c8")), np.ones((2, 3), "c8"))
        self.check(memoryview(np.arange(6)[::2]), np.arange(6)[::2])
        self.check(array.array("u", "abc"), np.array(list("abc")))
        self.check(_Takes([1.5, 2]), np.array([1.5, 2]))

    def test_what_would_be_lost(self):
        class Meters(np.ndarray):
            unit = "m"
        noted = np.dtype("f4", metadata={"unit": "m"})
        for value in (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2]),
                      np.zeros(2).view(Meters), np.array([object()]), np.zeros(2, noted), np.zeros(2, [("a", "O")]),
                      _Takes([1], coords={"x": [5]}), _Takes([1], palette=b"RGB"), _Takes([None, 1])):
            with self.assertRaisesRegex(tendril.Unstorable, "dump", msg=repr(value)):
                self.store.put(value)
        masked = np.ma.masked_array([1, 2], [0, 1])
        self.assertEqual(self.store.load(self.store.dump(masked)).tolist(), [1, None])

    def test_as_array(self):
        a = np.arange(6, dtype="f4").reshape(2, 3)
        with self.store.put(a) as o:
            for made in (np.asarray(o), np.array(o, copy=False) if np.__version__ < "2" else np.asarray(o, copy=False)):
                self.assertEqual(made.ctypes.data, o.numpy().ctypes.data)
            self.assertEqual(np.asarray(o, dtype="f8").dtype, np.float64)
            self.assertTrue(np.array(o).flags.writeable)
            self.assertEqual(float(np.mean(o)), 2.5)
            self.assertEqual((o.shape, o.dtype), ((2, 3), np.dtype("f4")))
        with self.store.put(b"abc") as o:
            self.assertEqual((o.shape, o.dtype, np.asarray(o).tolist()), ((3,), np.uint8, [97, 98, 99]))
        with self.store.dump([1]) as o:
            with self.assertRaisesRegex(tendril.Invalid, "load"):
                np.asarray(o)

    def test_streams(self):
        with self.store.writer("values") as w:
            w.push(np.zeros(2, [("a", "i4"), ("b", "f8")]))
            with self.assertRaises(tendril.Unstorable):
                w.push(np.ma.masked_array([1], [1]))
        self.assertEqual([f.load().dtype.names for f in self.store.reader("values")], [("a", "b")])


@unittest.skipIf(pandas is None, "pandas is not installed")
class Frames(WithDaemon):
    def test_frames(self):
        frame = pandas.DataFrame({
            "n": np.arange(1000), "f": np.linspace(0, 1, 1000), "s": ["a%d" % i for i in range(1000)],
            "t": pandas.date_range("2020-01-01", periods=1000, freq="H", tz="Europe/Berlin"),
            "c": pandas.Categorical(["x", "y"] * 500), "i": pandas.array([1, None] * 500, "Int64")})
        frame.attrs["unit"] = "m"
        several = frame.set_index(["s", "n"])
        for value in (frame, several, several.T, pandas.DataFrame()):
            with self.store.put(value) as o:
                self.assertEqual(o.meta["type"], "pandas.DataFrame")
                back = o.load()
                pandas.testing.assert_frame_equal(back, value)
                self.assertEqual(back.attrs, value.attrs)
                with self.assertRaisesRegex(tendril.Invalid, "pandas.DataFrame"):
                    o.numpy()
        for value in (frame["f"], frame["t"], frame["i"]):
            with self.store.put(value) as o:
                pandas.testing.assert_series_equal(o.load(), value)
        with self.store.put(frame.index) as o:
            pandas.testing.assert_index_equal(o.load(), frame.index)

    def test_numbers_lie_in_the_store(self):
        with self.store.put(pandas.DataFrame({"f": np.arange(10000.0)})) as o:
            start = np.frombuffer(o.data, "u1").ctypes.data
            column = o.load()["f"].to_numpy()
            self.assertTrue(start <= column.ctypes.data < start + o.size)
            self.assertFalse(column.flags.writeable)

    def test_another_tenants(self):
        class Foreign(tendril.Client):
            tenant = "uid:another"
        with self.store.put(pandas.Series([1])) as o, self.store.put(b"abc") as plain:
            with Foreign(self.daemon.socket) as other:
                with self.assertRaises(tendril.Permission):
                    other.load(o.id)
                self.assertEqual(bytes(other.load(plain.id)), b"abc")  # runs no code


@unittest.skipIf(pyarrow is None, "pyarrow is not installed")
class Tables(WithDaemon):
    def test_tables(self):
        table = pyarrow.table({"n": [1, None, 3], "s": ["a", "b", None], "l": [[1], [], None]})
        table = table.replace_schema_metadata({"unit": "m"})
        for value in (table, pyarrow.concat_tables([table, table]), table.slice(1, 1), table.slice(0, 0),
                      table.to_batches()[0], table.to_batches()[0].slice(0, 0)):
            with self.store.put(value) as o:
                back = o.load()
                self.assertIs(type(back), type(value))
                self.assertTrue(back.equals(value) and back.schema.equals(value.schema, check_metadata=True))
                with self.assertRaisesRegex(tendril.Invalid, "Arrow"):
                    o.numpy()
        with self.assertRaisesRegex(tendril.Unstorable, "dump"):
            self.store.put(pyarrow.array([1, None]))
        with self.store.put(pyarrow.py_buffer(b"abc")) as o:
            self.assertEqual(o.bytes(), b"abc")
        with self.store.put(b"nonsense", meta={"arrow": "table"}) as o, self.assertRaises(tendril.Invalid):
            o.load()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Tensors(WithDaemon):
    def test_tensors(self):
        for value in (torch.arange(6.0).reshape(2, 3), torch.arange(6).reshape(2, 3).T, torch.tensor(3),
                      torch.tensor([True, False]), torch.zeros(0, 4)):
            with self.store.put(value) as o:
                self.assertEqual(o.load().tolist(), value.tolist())
                if value.dtype != torch.bool:  # which PyTorch takes from DLPack since 2.0
                    taken = torch.from_dlpack(o)
                    self.assertTrue(torch.equal(taken, value))
                    if torch.__version__ < "2":  # it does not know DLPack 1.0, so it has a copy
                        taken.fill_(7)
                        self.assertEqual(o.load().tolist(), value.tolist())

    def test_types_that_numpy_lacks(self):
        value = torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)
        for tensor in (value, value.T):
            with self.store.put(tensor) as o:
                self.assertEqual((o.dtype.str, o.shape), ("|V2", tuple(tensor.shape)))
                back = torch.from_dlpack(o)
                self.assertEqual(back.dtype, torch.bfloat16)
                self.assertTrue(torch.equal(back, tensor))
        with self.assertRaisesRegex(tendril.Unstorable, "densely"):
            self.store.put(value[:, ::2])

    def test_gradients_are_not_lost(self):
        value = torch.ones(2, requires_grad=True)
        with self.assertRaisesRegex(tendril.Unstorable, "dump"):
            self.store.put(value)
        self.assertTrue(self.store.load(self.store.dump(value)).requires_grad)


if __name__ == "__main__":
    unittest.main()
