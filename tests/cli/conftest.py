from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from carousel.cli.app import app
from carousel.storage import FieldSpec, LMDBTier, RecordBatch


@pytest.fixture
def carousel() -> Callable[..., Result]:
    """Run a command line in this process."""

    def run(*words: object, answer: str | None = None, width: int = 80) -> Result:
        env = {"COLUMNS": str(width)}
        return CliRunner().invoke(app, [str(word) for word in words], input=answer, env=env)

    return run


@pytest.fixture
def store(tmp_path) -> Path:
    """A storage of 60 samples: classes 0 to 2, 20 each; tasks 0 (even ids) and 1 (odd ids)."""
    path = tmp_path / "db"
    ids = np.arange(60)
    rng = np.random.default_rng(0)
    with LMDBTier(path, sync=True) as tier:
        tier.reserve_ids(60)
        tier.put_many(
            RecordBatch(
                ids,
                ids % 3,
                ids % 2,
                (FieldSpec("x", "uint8", (1, 40, 40)),),
                {"x": rng.integers(0, 256, (60, 1, 40, 40), dtype=np.uint8)},
            )
        )
        tier.flush()
    return path
