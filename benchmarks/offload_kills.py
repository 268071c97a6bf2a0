"""Fifty-one kills of a training with `TieredAdamW`, and what was there afterwards.

A small model whose states pass through a file or stay in RAM between commits, with a commit every
step and every fourth one, with and without a delay; some commits are slowed, for a fast one is hard
to hit, and hides what does not wait for it.

Kills come while the optimizer is made or resumed, while a commit is published, and in between, at
random moments whose seeds are fixed. After each the training is resumed: parameters, states and
payload must be torch's after as many steps without a kill, bit for bit, and no more steps may be
lost than promised.

Run: ``python -m benchmarks.offload_kills [--json FILE] [--folder FOLDER]``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch

from benchmarks._harness import Row, report
from benchmarks._kills import WHERE, Campaign, Fate, campaign, nursery

CAMPAIGNS = {
    "a commit every step": Campaign(WHERE * 4, seed=1),
    "a commit every step that survives power loss": Campaign(
        WHERE * 3, durability="bounded", seed=2
    ),
    "a commit every 4 steps": Campaign(WHERE * 3, commit_every=4, seed=3),
    "a slow commit every step, states in RAM": Campaign(
        WHERE * 4, ram_budget="2MiB", chunk_numel=16384, slowed=0.02, seed=4
    ),
    "a slow commit every step, one step late": Campaign(
        WHERE * 3, delay=1, ram_budget="700KiB", slowed=0.02, seed=5
    ),
}


def main() -> None:
    """Kill, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--folder", type=Path, default=Path(), help="for the optimizers' files")
    choices = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=choices.folder) as folder, nursery() as children:
        fates = {
            label: list(campaign(children, Path(folder) / str(plan.seed), plan))
            for label, plan in CAMPAIGNS.items()
        }
    report(rows_of(fates), "offload_kills", choices.json)


def rows_of(fates: dict[str, list[Fate]]) -> list[Row]:
    """What is promised, and where the kills hit."""
    every = [fate for found in fates.values() for fate in found]
    hit = Counter(fate.where for fate in every)
    return [
        Row.at_least("kills", len(every), 50),
        Row.at_least("of them resumed bit for bit, or before any commit", exact(every), len(every)),
        *(
            Row.at_most(
                f"{label}: steps lost that had returned, at most",
                max(fate.lost for fate in found),
                CAMPAIGNS[label].may_lose,
            )
            for label, found in fates.items()
        ),
        Row("killed before the first commit", sum(fate.recovered is None for fate in every)),
        *(Row(f"killed within: {where}", hit[where]) for where in WHERE),
        Row("steps of the longest training", max(fate.recovered or 0 for fate in every)),
    ]


def exact(fates: list[Fate]) -> int:
    """How many came back as they must."""
    return sum(fate.same for fate in fates)


if __name__ == "__main__":
    main()
