"""What the benchmarks share: rows with targets, a table, a JSON file, and paired blocks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

__all__ = ["Row", "interleave", "median_ratio", "parse_arguments", "report", "write_rows"]


@dataclass(frozen=True)
class Row:
    """One measured figure.

    Args:
        metric: what was measured.
        value: the figure.
        target: the bound in words such as ``">= 0.85"``, None for a figure without one.
        met: whether the bound holds, None without one.
    """

    metric: str
    value: float
    target: str | None = None
    met: bool | None = None

    @classmethod
    def at_least(cls, metric: str, value: float, bound: float) -> Row:
        """A figure that has to reach a bound."""
        return cls(metric, value, f">= {bound:g}", bool(value >= bound))

    @classmethod
    def at_most(cls, metric: str, value: float, bound: float) -> Row:
        """A figure that must not pass a bound."""
        return cls(metric, value, f"<= {bound:g}", bool(value <= bound))


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The command line of a benchmark: ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def report(rows: list[Row], title: str, json_file: Path | None = None) -> None:
    """Print the rows as a table and, on request, write them as a list of JSON objects."""
    table = Table("metric", "value", "target", "met", title=title)
    for row in rows:
        met = "" if row.met is None else ("yes" if row.met else "NO")
        table.add_row(row.metric, f"{row.value:.4g}", row.target or "", met)
    Console().print(table)
    if json_file is not None:
        write_rows(rows, json_file)


def write_rows(rows: list[Row], json_file: Path) -> None:
    """Write the rows as a list of JSON objects; the file is there whole, old or new."""
    fresh = json_file.with_name(f".{json_file.name}.tmp")
    fresh.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    fresh.replace(json_file)


def interleave(
    sides: Mapping[str, Callable[[], float]], blocks: int, warm_up: int = 1
) -> dict[str, npt.NDArray[np.float64]]:
    """Run every side once a block, starting with another one each time.

    Args:
        sides: each runs a fixed amount of work and returns what it cost.
        blocks: how often; costs of one block are paired.
        warm_up: blocks before these whose costs are thrown away.

    Returns:
        Costs by side, (blocks,) each.
    """
    names = list(sides)
    costs: dict[str, list[float]] = {name: [] for name in names}
    for block in range(-warm_up, blocks):
        shift = block % len(names)
        for name in names[shift:] + names[:shift]:
            cost = sides[name]()
            if block >= 0:
                costs[name].append(cost)
    return {name: np.array(values) for name, values in costs.items()}


def median_ratio(costs: Mapping[str, npt.NDArray[np.float64]], over: str, under: str) -> float:
    """The median of the paired ratios of two sides, as `interleave` returns them."""
    return float(np.median(costs[over] / costs[under]))
