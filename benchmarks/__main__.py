"""All quick benchmarks, one after the other: ``python -m benchmarks [--json FOLDER]``.

Each measures in a process of its own, so that none warms another's caches, and ends with its
table; with a folder each also writes ``NAME.json`` into it. The accuracy studies take hours and
are run by hand (``make study``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

QUICK = ("storage_io", "memory_bound", "replay_throughput", "swap_overhead")


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Quick benchmarks.")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write NAME.json files here")
    folder: Path | None = parser.parse_args().json
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for name in QUICK:
        print(f"\n{name}", flush=True)
        output = [] if folder is None else ["--json", str(folder / f"{name}.json")]
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *output], check=True)


if __name__ == "__main__":
    main()
