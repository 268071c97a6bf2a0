"""Options of the wrong kind are refused by name, before a strategy is made of them."""

import pytest

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import list_strategies, make_strategy
from carousel.strategies.options import check_option
from carousel.strategies.registry import strategy_info


@pytest.mark.parametrize(
    ("name", "default", "good", "bad", "fix"),
    [
        ("task_aware", False, [True, False], ["maybe", 1, None], "true or false"),
        ("copies", 12, [3, 0], ["x", 2.5, 3.0, True, None], "a whole number"),
        ("temperature", 2.0, [1, 0.5], ["x", True, None], "a number"),
        ("clip", 10.0, [1, None], ["x"], "a number or null"),
        ("bias_epochs", None, [5, None], ["x", 0.5, float("inf")], "a whole number or null"),
        ("perturb", None, [None, max], ["foo", 3], "a function, from Python or null"),
        ("distill_weight", "original", ["incremental", 0.3], [], ""),
        ("features", None, ["body", max], [], ""),
    ],
)
def test_kinds(name, default, good, bad, fix):
    for value in good:
        check_option(name, value, default)
    for value in bad:
        with pytest.raises(BadInputError, match=f"{name} is ") as error:
            check_option(name, value, default)
        assert error.value.fix == f"give {fix}"


@pytest.mark.parametrize("method", list_strategies())
def test_no_option_of_a_method_ends_in_a_type_error(helpers, method):
    for name in strategy_info(method).options:
        model = helpers.model()
        with pytest.raises(BadInputError, match="nonsense"):
            make_strategy(
                method,
                {name: "nonsense"},
                model=model,
                optimizer=helpers.sgd(model),
                storage=MemoryTier(),
            )


@pytest.mark.parametrize("method", list_strategies())
def test_defaults_are_of_their_own_kind(method):
    for name, default in strategy_info(method).options.items():
        check_option(name, default, default)
