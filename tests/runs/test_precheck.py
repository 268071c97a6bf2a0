from __future__ import annotations

from typing import get_args

import pytest

from carousel.data.augment import AUGMENTATIONS
from carousel.data.orders import CLASS_ORDERS
from carousel.errors import BadInputError
from carousel.memory.admission import ADMISSIONS
from carousel.memory.gate import GATES
from carousel.models.registry import MODELS
from carousel.runs import precheck
from carousel.runs.config import TrainConfig, resolve_config
from carousel.strategies.loss import LossName


def test_the_names_are_those_of_the_things():
    assert tuple(GATES) == precheck.GATES
    assert tuple(ADMISSIONS) == precheck.ADMISSIONS
    assert tuple(MODELS) == precheck.MODELS
    assert get_args(LossName) == precheck.LOSSES
    assert get_args(TrainConfig.model_fields["augment"].annotation) == AUGMENTATIONS
    described = TrainConfig.model_fields["class_order"].description
    assert all(name in described for name in CLASS_ORDERS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"class_order": "icarl"}, "icarl-cifar100"),
        ({"class_order": "0,1,1"}, "each once"),
        ({"nesterov": True}, "nesterov is given with adamw: use optimizer sgd"),
        (
            {"nesterov": True, "optimizer": "sgd", "momentum": 0},
            "nesterov .* with momentum 0",
        ),
        ({"strategy": "gdumb", "lr_milestones": [3]}, "has a schedule of its own"),
        ({"strategy": "rm", "lr_milestones": [3]}, "leave lr_milestones out"),
    ],
)
def test_what_does_not_go_together_is_refused_before_torch_is_loaded(tmp_path, settings, words):
    with pytest.raises(BadInputError, match=words):
        precheck.check_settings(resolve_config(command_line=settings), tmp_path)


def test_a_method_without_its_schedule_takes_milestones(tmp_path):
    given = {"strategy": "gdumb", "strategy.schedule": "constant", "lr_milestones": [3]}
    precheck.check_settings(resolve_config(command_line=given), tmp_path)
