"""A small disk of its own for a script, where namespaces with a tmpfs may be made."""

from __future__ import annotations

import subprocess
import sys

import pytest

_RUN = 'mount -t tmpfs -o size="$4" tmpfs "$1" && exec "$2" -c "$3" "$1"'


def in_namespace(*command):
    return subprocess.run(
        ["unshare", "--mount", *command], check=False, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory):
    """Skips where a mount namespace with a tmpfs may not be made."""
    point = tmp_path_factory.mktemp("mount")
    try:
        probe = in_namespace("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point))
    except FileNotFoundError:
        pytest.skip("there is no unshare command")
    if probe.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {probe.stderr.strip()}")


@pytest.fixture
def small_disk(namespaces, tmp_path):
    """Runs a script in a process whose first argument is a disk of some size, to its end."""

    def run(script, size):
        script = f"{script}\nprint('held')\n"
        child = in_namespace("sh", "-c", _RUN, "sh", str(tmp_path), sys.executable, script, size)
        assert child.stdout.strip() == "held", child.stderr

    return run
