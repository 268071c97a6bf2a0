"""The reduced settings that come with the package are those of the committed study."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from carousel.runs.config import resolve_config
from carousel.runs.study.grid import make_grid
from carousel.runs.study.settings import plan_study
from carousel.strategies.registry import list_strategies, strategy_info

ROOT = Path(__file__).parents[2]
METHODS = [name for name in list_strategies() if strategy_info(name).has_memory]


def cells(study_file):
    study = plan_study(file=yaml.safe_load((ROOT / study_file).read_text()))
    return {cell.strategy: cell.config for cell in make_grid(study) if cell.swap}


def shipped(method, benchmark):
    name = method.replace("+", "p")
    text = (ROOT / "carousel" / "configs" / f"{name}-{benchmark}.yaml").read_text()
    return resolve_config(file=yaml.safe_load(text))


def decisive(config):
    """What the file of one run leaves to the machine, and to the study, does not count."""
    return config.model_dump(exclude={"seed", "device", "no_swap", "out", "storage"})


@pytest.mark.parametrize("method", METHODS)
def test_figlet_settings_are_those_of_the_central_table(method):
    study = cells("benchmarks/studies/accuracy_seven.yaml")
    assert decisive(shipped(method, "figlet94")) == decisive(study[method])


def test_glyph_settings_are_those_of_the_headline():
    study = cells("benchmarks/studies/accuracy_seven_glyph.yaml")
    assert decisive(shipped("er", "glyph94")) == decisive(study["er"])
