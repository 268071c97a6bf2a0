from __future__ import annotations

import pytest

from carousel.report.words import bytes_text, percent_text, seconds_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (9.999 * 2**20, "10.0 MiB"),
        (99.96 * 2**20, "100 MiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (64 * 2**20, "64.0 MiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 s"),
        (59.4, "59 s"),
        (59.9, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_percent():
    assert percent_text(0.12345) == "12.3 %"
    assert percent_text(None) == "-"
