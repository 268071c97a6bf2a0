from __future__ import annotations

from typing import get_args

from carousel.memory.admission import ADMISSIONS
from carousel.memory.gate import GATES
from carousel.models.registry import MODELS
from carousel.runs import precheck
from carousel.strategies.loss import LossName


def test_the_names_are_those_of_the_things():
    assert tuple(GATES) == precheck.GATES
    assert tuple(ADMISSIONS) == precheck.ADMISSIONS
    assert tuple(MODELS) == precheck.MODELS
    assert get_args(LossName) == precheck.LOSSES
