"""Rules of a memory: the user's first, then the method's, then the usual ones."""

import pytest

from carousel.errors import BadInputError
from carousel.strategies.rules import PLAIN, Rules, settle


def test_what_nobody_chose_is_experience_replay():
    rules = settle(Rules())
    assert (rules.update, rules.replay, rules.admission, rules.gate) == (
        PLAIN.update,
        "concat",
        "class-balanced",
        "balanced",
    )
    assert rules.batch_size_mem is None
    assert rules.draws == 1


def test_the_user_comes_before_the_method():
    rules = settle(Rules(gate="random", batch_size_mem=3), Rules(gate="score", update="batch"))
    assert (rules.gate, rules.update, rules.batch_size_mem) == ("random", "batch", 3)


def test_the_number_of_draws_is_the_methods():
    assert settle(Rules(), Rules(draws=2)).draws == 2


def test_a_choice_that_the_method_cannot_work_with():
    with pytest.raises(BadInputError, match="update is 'experience', with which DER") as error:
        settle(Rules(update="experience"), Rules(update="batch", only=("update",)), method="DER++")
    assert "leave update out" in error.value.fix
    assert settle(Rules(update="batch"), Rules(update="batch", only=("update",)))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (Rules(update="never"), "update is 'never'"),
        (Rules(replay="most"), "replay is 'most'"),
        (Rules(batch_size_mem=0), "batch_size_mem is 0"),
        (Rules(update="batch", replay="mixed"), 'replay="mixed"'),
        (Rules(update="batch", replay="memory"), 'replay="memory"'),
    ],
)
def test_rules_that_cannot_be(chosen, words):
    with pytest.raises(BadInputError, match=words):
        settle(chosen)


def test_a_rule_without_a_name_is_not_offered():
    with pytest.raises(BadInputError) as error:
        settle(Rules(admission="ring"), Rules(only=("admission",)), method="iCaRL")
    assert error.value.fix == "leave admission out"
