"""docs/PYTHON.md: each section is run as a program, and prints what the page says."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from .test_daemon import WithDaemon

PAGE = os.environ.get("PYTHON_PAGE") or os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "PYTHON.md")
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


class Page(WithDaemon):
    def test_sections(self):
        ran = 0
        package = os.path.dirname(os.path.dirname(sys.modules["tendril"].__file__))
        env = dict(os.environ, TENDRIL_SOCKET=self.daemon.socket, PYTHONPATH=package, PYTHONWARNINGS="ignore")
        for title, program, prints in sections():
            missing = lacks(program)
            if missing:
                sys.stderr.write("docs/PYTHON.md, %s: not run without %s\n" % (title, ", ".join(missing)))
                continue
            with self.subTest(title), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "section.py")
                with open(path, "w", encoding="utf-8") as f:
                    f.write(program)
                done = subprocess.run([sys.executable, path], env=env, cwd=folder, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, universal_newlines=True)
                self.assertEqual((done.returncode, done.stdout), (0, prints), done.stderr)
                ran += 1
        self.assertGreater(ran, 5)


if __name__ == "__main__":
    unittest.main()
