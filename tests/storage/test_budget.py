import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.storage.budget import Budget, Size, parse_budget, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (500, Size("count", 500)),
        (np.int64(500), Size("count", 500)),
        ("500", Size("count", 500)),
        (" 5000 ", Size("count", 5000)),
        ("64MiB", Size("bytes", 64 << 20)),
        ("64 mib", Size("bytes", 64 << 20)),
        ("64MB", Size("bytes", 64_000_000)),
        ("1.5GiB", Size("bytes", 3 << 29)),
        ("1TB", Size("bytes", 10**12)),
        ("4096B", Size("bytes", 4096)),
        ("50%", Size("fraction", 0.5)),
        ("100%", Size("fraction", 1.0)),
    ],
)
def test_sizes_mean_what_people_write(text, size):
    assert parse_size(text, percent=True) == size


@pytest.mark.parametrize(
    "text",
    ["", "lots", "64XB", "1.5", "-3", "0", "0MiB", "64 MiB free", "1e3", True, 2.5, None, "0.5B"],
)
def test_what_is_no_size_is_refused_with_its_name(text):
    with pytest.raises(BadInputError, match="memory_size is"):
        parse_size(text, name="memory_size")


def test_a_share_is_refused_where_it_makes_no_sense_or_is_too_large():
    with pytest.raises(BadInputError, match="size is '50%'"):
        parse_size("50%")
    with pytest.raises(BadInputError, match="at most 100%"):
        parse_size("101%", percent=True)


@given(st.integers(1, 10**9), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_binary_units_are_powers_of_1024(number, unit):
    power = {"KiB": 1, "MiB": 2, "GiB": 3}[unit]
    assert parse_size(f"{number}{unit}").value == number * 1024**power


def test_budgets_of_all_kinds():
    assert parse_budget(None).unlimited
    assert parse_budget(5000) == Budget(max_records=5000)
    assert parse_budget("64MiB") == Budget(max_bytes=64 << 20)
    assert parse_budget("50%") == Budget(disk_fraction=0.5)
    assert parse_budget(Budget(max_records=3)) == Budget(max_records=3)


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 0}, {"max_records": -1}, {"disk_fraction": 0.0}, {"disk_fraction": 2}]
)
def test_a_budget_of_nothing_is_refused(limits):
    with pytest.raises(BadInputError, match=next(iter(limits))):
        Budget(**limits)


def test_a_share_of_the_disk_becomes_bytes_for_a_folder_that_is_not_there_yet(tmp_path):
    budget = Budget(disk_fraction=0.5).resolve(tmp_path / "a" / "b")
    assert budget.disk_fraction is None
    assert budget.max_bytes > 0
    smaller = Budget(disk_fraction=0.5, max_bytes=10).resolve(tmp_path)
    assert smaller.max_bytes == 10


@pytest.mark.parametrize("limit", [0, 2.5, float("nan"), "5"])
@pytest.mark.parametrize("name", ["max_bytes", "max_records"])
def test_a_limit_is_a_whole_number(name, limit):
    with pytest.raises(BadInputError, match=f"{name} is"):
        Budget(**{name: limit})
