from __future__ import annotations

import pytest

from carousel.spelling import nearest
from carousel.strategies.registry import list_strategies


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("der", "der++"),
        ("ER", "er"),
        ("BIC", "bic"),
        ("bicc", "bic"),
        ("iCaRL", "icarl"),
        ("tiny", "tiny-er"),
        ("gdum", "gdumb"),
        ("err", "er"),
        ("transformer", None),
        ("", None),
    ],
)
def test_the_strategy_that_was_meant(typed, meant):
    assert nearest(typed, list_strategies()) == meant


def test_of_two_beginnings_the_shorter_rest_wins():
    assert nearest("split-cifar1", ["split-cifar100", "split-cifar10"]) == "split-cifar10"


def test_the_choice_keeps_its_own_case():
    assert nearest("resnet", ["ResNet18"]) == "ResNet18"


def test_a_beginning_of_one_or_two_letters_is_no_hint():
    assert nearest("st", ["strategies"]) is None
