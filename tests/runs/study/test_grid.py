from __future__ import annotations

import pytest

from carousel.errors import BadInputError
from carousel.runs.folder import RunFolder
from carousel.runs.study.grid import make_grid
from carousel.runs.study.settings import plan_study


def grid(strategies="er", seeds="1", *assignments, **further):
    return make_grid(
        plan_study(strategies=strategies, seeds=seeds, assignments=assignments, **further)
    )


def kinds(cells):
    return [(cell.strategy, cell.swap, cell.seed) for cell in cells]


def test_methods_by_swap_by_seed_and_the_bounds_once_a_seed():
    assert kinds(grid("er", "2")) == [
        (name, swap, seed)
        for seed in (0, 1)
        for name, swap in (("er", False), ("er", True), ("naive", None), ("joint", None))
    ]


@pytest.mark.parametrize(
    ("swap", "kept"), [("both", [False, True]), ("on", [True]), ("off", [False])]
)
def test_one_side_of_the_comparison(swap, kept):
    assert [cell.swap for cell in grid(swap=swap, bounds=False)] == kept


def test_bounds_that_are_named_are_not_doubled():
    assert kinds(grid("naive", "1")) == [("naive", None, 0), ("joint", None, 0)]
    assert kinds(grid("er,naive", "1", swap="on")) == kinds(grid("er", "1", swap="on"))


def test_settings_become_those_of_train():
    plain, swap, naive, _ = (cell.config for cell in grid("er", "7,", "memory_size=30", "gate=all"))
    assert (plain.no_swap, plain.seed, plain.memory_size) == (True, 7, 30)
    assert (swap.no_swap, swap.gate) == (False, "all")
    assert naive.memory_size is None


def test_a_sweep_of_the_swaps_has_one_run_without_them_and_one_of_each_bound():
    cells = grid("er", "1", "swap_ratio=0.2,0.5", "gate=all,random")
    assert len([cell for cell in cells if cell.swap]) == 4
    assert len([cell for cell in cells if not cell.swap]) == 3
    assert {cell.point for cell in cells if not cell.swap} == {()}


def test_a_sweep_of_all_runs_has_them_all():
    cells = grid("er", "1", "lr=0.1,0.2")
    assert len(cells) == 8
    assert {cell.point for cell in cells} == {(("lr", 0.1),), (("lr", 0.2),)}


def test_a_sweep_of_the_memory_leaves_the_bounds_alone():
    cells = grid("er", "1", "memory_size=20,30")
    assert [cell.point for cell in cells if cell.strategy == "naive"] == [()]
    assert len([cell for cell in cells if cell.swap is False]) == 2


def test_options_of_a_strategy_reach_those_that_have_them():
    by_name = {cell.strategy: cell.config for cell in grid("er", "1", "strategy.loss=bce")}
    assert by_name["er"].options == by_name["naive"].options == {"loss": "bce"}


def names(*assignments, **further):
    return [cell.name for cell in grid("er", "1", *assignments, **further)]


def test_names_are_readable_and_safe():
    _, swap, _, naive, _ = names("swap_ratio=0.2,0.5")
    assert swap.startswith("er-swap-seed0-swap_ratio=0.2-")
    assert naive.startswith("naive-seed0-")
    assert "/" not in names("benchmark=folder:/a/b,npz:/c/d")[0]


@pytest.mark.parametrize(
    "same", [["lr=0.001"], ["replay=concat"], ["strategy.loss=ce"], ["device=cpu"], ["lr=1e-3"]]
)
def test_equal_settings_have_one_name_however_they_are_written(same):
    assert names(*same) == names()


@pytest.mark.parametrize(
    "other", [["lr=0.1"], ["replay=mixed"], ["strategy.loss=bce"], ["limit=9"], ["epochs=9"]]
)
def test_other_settings_have_other_names(other):
    assert not set(names(*other)[:2]) & set(names()[:2])


def test_a_swept_value_names_the_run_as_if_it_were_the_only_one():
    assert [name.rsplit("-", 1)[1] for name in names("lr=0.1,0.2")[:2]] == [
        name.rsplit("-", 1)[1] for name in names("lr=0.1")[:2]
    ]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("swap_ration=0.5", "did you mean swap_ratio"),
        ("swap_ratio=0.5,1.5", "swap_ratio is 1.5"),
        ("epochs=x", "epochs is 'x': give a whole number"),
    ],
)
def test_what_no_run_takes_is_refused(assignment, message):
    with pytest.raises(BadInputError, match=message):
        grid("er", "1", assignment)


def test_a_run_made_with_other_defaults_is_not_taken_for_done(tmp_path):
    cell = grid()[1]
    folder = RunFolder(tmp_path / cell.name)
    folder.create(cell.config)
    cell.check_same(folder)
    folder.create(cell.config.model_copy(update={"lr": 0.5}))
    with pytest.raises(BadInputError, match=r"lr was 0.5 in the run .* is 0.001 now: give --fresh"):
        cell.check_same(folder)
