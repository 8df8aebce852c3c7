"""Builds wheels and source distributions in a copy of this directory: setuptools leaves build/ and an egg-info beside
its sources, and takes what an earlier build left in build/ into the next wheel."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any, Iterator

from setuptools import build_meta
from setuptools.build_meta import build_editable  # noqa: F401: of the sources as they lie here


@contextlib.contextmanager
def _copy() -> "Iterator[None]":
    """Works in a copy of the working directory, which frontends have set to that of pyproject.toml."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="tendril-build-") as folder:
        there = os.path.join(folder, "tendril")
        shutil.copytree(here, there, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*"))
        license = os.path.join(here, "..", "..", "LICENSE")  # the repository's; a source distribution has it already
        if os.path.exists(license) and not os.path.exists("LICENSE"):
            shutil.copy(license, there)
        os.chdir(there)
        try:
            yield
        finally:
            os.chdir(here)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """PEP 517. Returns the wheel's name."""
    target = os.path.abspath(wheel_directory)
    with _copy():
        return str(build_meta.build_wheel(target, config_settings))


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """PEP 517. Returns the archive's name."""
    target = os.path.abspath(sdist_directory)
    with _copy():
        return str(build_meta.build_sdist(target, config_settings))
