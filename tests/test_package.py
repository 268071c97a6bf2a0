"""The package as a whole: what importing costs, and that the examples in docstrings run."""

from __future__ import annotations

import doctest
import pkgutil
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import carousel

MODULES = [module.name for module in pkgutil.walk_packages(carousel.__path__, "carousel.")]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_importing_the_package_loads_nothing_heavy_and_starts_nothing():
    code = (
        "import sys, threading, carousel;"
        "heavy = {'torch', 'avalanche', 'numpy', 'lmdb'} & set(sys.modules);"
        "sys.exit(bool(heavy) or threading.active_count() > 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "package",
    ["carousel", *(f"carousel.{name}" for name in ("data", "memory", "storage", "strategies"))],
)
def test_public_names_are_there(package):
    module = import_module(package)
    for name in module.__all__:
        assert getattr(module, name).__doc__
        assert name in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing
