"""Where a run took place: enough to repeat it, and to explain a difference."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

import carousel

__all__ = ["PACKAGES", "describe_environment", "describe_machine", "package_versions"]

PACKAGES = (
    "torch",
    "torchvision",
    "avalanche-lib",
    "numpy",
    "lmdb",
    "xxhash",
    "scikit-learn",
    "pillow",
    "matplotlib",
    "pydantic",
    "typer",
    "rich",
    "psutil",
    "aiofiles",
)


def describe_environment(*, seed: int, device: str, threads: int) -> dict[str, Any]:
    """The content of ``environment.json``.

    Args:
        seed: of the run.
        device: that trained, as torch names it.
        threads: of torch on the CPU.
    """
    return {**describe_machine(), "seed": seed, "device": device, "threads": threads}


def describe_machine() -> dict[str, Any]:
    """Versions, command and machine of this process."""
    return {
        "carousel": carousel.__version__,
        "command": shlex.join(["carousel", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "ram_bytes": psutil.virtual_memory().total,
        "packages": package_versions(),
    }


def package_versions() -> dict[str, str | None]:
    """Installed version of each package that matters, None where it is missing."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
