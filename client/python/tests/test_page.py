"""docs/PYTHON.md and docs/notebook.ipynb: each section is run as a program, the cells are run in one program, and they
print what is written there."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import tendril

from .test_daemon import WithDaemon, until

PAGE = os.environ.get("PYTHON_PAGE") or os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "PYTHON.md")
NOTEBOOK = os.path.join(os.path.dirname(PAGE), "notebook.ipynb")
OPTIONAL = ("numpy", "pandas", "pyarrow", "torch")


def sections():
    """The page's sections that have code: title, program, what it prints."""
    with open(PAGE, encoding="utf-8") as f:
        parts = re.split(r"^## (.*)\n", f.read(), flags=re.M)
    for title, text in zip(parts[1::2], parts[2::2]):
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
        program, prints = ("".join(body for kind, body in blocks if kind == want) for want in ("python", "text"))
        if program:
            yield title, program, prints


def lacks(program):
    """The libraries that a program imports and this Python does not have."""
    wanted = set(re.findall(r"^import (\w+)", program, flags=re.M))
    have = subprocess.run([sys.executable, "-c", "import sys, importlib.util as u\nprint(*[m for m in sys.argv[1:] "
                           "if u.find_spec(m) is None])", *(m for m in OPTIONAL if m in wanted)],
                          stdout=subprocess.PIPE, check=True, universal_newlines=True)
    return have.stdout.split()


def cells():
    """The notebook's cells of code: source, what it prints."""
    with open(NOTEBOOK, encoding="utf-8") as f:
        notebook = json.load(f)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = "".join("".join(o["text"]) for o in cell["outputs"] if o["name"] == "stdout")
            yield "".join(cell["source"]), printed


class Page(WithDaemon):
    def run_program(self, folder, program):
        """Runs a program in a folder of its own. Returns what it printed; its failure is the test's."""
        package = os.path.dirname(os.path.dirname(sys.modules["tendril"].__file__))
        env = dict(os.environ, TENDRIL_SOCKET=self.daemon.socket, PYTHONPATH=package, PYTHONWARNINGS="ignore")
        path = os.path.join(folder, "section.py")
        with open(path, "w", encoding="utf-8") as f:
            f.write(program)
        done = subprocess.run([sys.executable, path], env=env, cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_notebook(self):
        program, prints = [], []
        if lacks(next(cells())[0]):
            self.skipTest("the first cell, which the others need, is not run without numpy")
        whole = list(cells())
        for source, printed in whole:
            missing = lacks(source)
            if missing:
                sys.stderr.write("docs/notebook.ipynb: a cell is not run without %s\n" % ", ".join(missing))
                continue
            for _ in range(1 if source == whole[-1][0] else 2):  # the last deletes: others may be run again
                program.append(source + '\nprint("-- end of cell", flush=True)')
                prints.append(printed)
        with tendril.connect(self.daemon.socket) as mine:
            mine["mine"] = b"x"
            with tempfile.TemporaryDirectory() as folder:
                got = self.run_program(folder, "\n".join(program)).split("-- end of cell\n")
            until(lambda: [o.name for o in mine.list()] == ["mine"], "the end of what it has made, and of nothing else")
        self.assertEqual(got, prints + [""])

    def test_sections(self):
        ran = 0
        for title, program, prints in sections():
            missing = lacks(program)
            if missing:
                sys.stderr.write("docs/PYTHON.md, %s: not run without %s\n" % (title, ", ".join(missing)))
                continue
            with self.subTest(title), tempfile.TemporaryDirectory() as folder:
                for time in "the first time", "the second time":  # what the first has left is in nobody's way
                    self.assertEqual(self.run_program(folder, program), prints, time)
                ran += 1
        self.assertGreater(ran, 5)


if __name__ == "__main__":
    unittest.main()
