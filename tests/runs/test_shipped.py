"""Every file of settings that comes with the package can be used as it is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from carousel.data import ArrayDataset, Stream, load_stream, make_stream
from carousel.data.registry import list_benchmarks
from carousel.errors import BadInputError
from carousel.runs import build, precheck
from carousel.runs.build import gather_ingredients
from carousel.runs.config import OPTION_PREFIX, read_config_file, resolve_config
from carousel.runs.shipped import config_path, list_shipped, shipped_path
from carousel.strategies.registry import strategy_info

NAMES = [shipped.name for shipped in list_shipped()]
METHODS = {
    "er": "er",
    "tiny-er": "tiny-er",
    "icarl": "icarl",
    "bic": "bic",
    "gdumb": "gdumb",
    "derpp": "der++",
    "rm": "rm",
}
DATA = {
    "digits": "split-digits",
    "figlet94": "figlet-94",
    "glyph94": "glyph-94",
    "cifar10": "split-cifar10",
    "cifar100": "split-cifar100",
    "tinyimagenet": "split-tiny-imagenet",
    "imagenet100": "folder:imagenet-100",
    "miniimagenet": "folder:mini-imagenet",
}
PAPER = {
    "er": {"cifar100", "imagenet100"},
    "tiny-er": {"cifar100", "miniimagenet"},
    "icarl": {"cifar100", "imagenet100"},
    "bic": {"cifar100", "imagenet100"},
    "gdumb": {"cifar10", "tinyimagenet"},
    "derpp": {"cifar10", "tinyimagenet"},
    "rm": {"cifar10", "tinyimagenet"},
}


def shape_and_classes(config):
    if config.benchmark.startswith("folder:"):
        return (3, config.resize, config.resize), 100
    (info,) = [info for info in list_benchmarks() if info.name == config.benchmark]
    return info.shape, info.n_classes


def stand_in(config) -> Stream:
    """Images of the right shape and number of classes, three of each to train on."""
    shape, n_classes = shape_and_classes(config)
    y = np.repeat(np.arange(n_classes), 3)
    x = np.zeros((len(y), *shape), np.uint8)
    data = ArrayDataset.of(x, y, x_test=x[::3], y_test=y[::3], layout="NCHW")
    return make_stream(data, config.experiences, class_order=config.class_order)


def test_every_method_has_the_papers_settings_and_small_ones():
    expected = {
        f"{method}-{data}"
        for method, sets in PAPER.items()
        for data in (*sets, "digits", "figlet94")
    }
    assert set(NAMES) == expected | {"er-glyph94"}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_how_to_start_it_and_is_named_after_what_it_does(name):
    text = shipped_path(name).read_text()
    launch, note, *_ = text.splitlines()
    config = resolve_config(file=read_config_file(shipped_path(name)))
    own_data = " --benchmark folder:PATH" if config.benchmark.startswith("folder:") else ""
    assert launch == f"# carousel train --config {name}{own_data}"
    assert re.fullmatch(r"# (paper|reduced|to try), [\w= ]{5,12}", note)
    method, data = name.rsplit("-", 1)
    assert (config.strategy, config.benchmark) == (METHODS[method], DATA[data])
    assert ("paper" in note) == (data in PAPER[method])
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_no_key_is_written_twice_and_options_are_those_of_the_method(name):
    lines = [line for line in shipped_path(name).read_text().splitlines() if ":" in line]
    keys = [line.split(":")[0] for line in lines if not line.startswith("#")]
    assert len(keys) == len(set(keys))
    given = read_config_file(shipped_path(name))
    assert set(given) == set(keys)
    known = strategy_info(given["strategy"]).options
    options = {key.removeprefix(OPTION_PREFIX) for key in keys if key.startswith(OPTION_PREFIX)}
    assert options <= set(known)
    assert {flag for flag in precheck.METHOD_FLAGS if flag in given} <= set(known)


@pytest.mark.parametrize("name", NAMES)
def test_the_method_can_be_built_on_data_of_that_shape(name, tmp_path, monkeypatch):
    config = resolve_config(file=read_config_file(shipped_path(name)))
    config = config.model_copy(update={"device": "cpu"})
    stream = stand_in(config)
    monkeypatch.setattr(build, "load_stream", lambda **_: stream)
    monkeypatch.setattr(precheck, "check_benchmark", lambda *_: None)
    parts = gather_ingredients(config, tmp_path / "store")
    assert parts.config.experiences == config.experiences == len(stream.train)
    if name.rsplit("-", 1)[1] in PAPER[name.rsplit("-", 1)[0]]:
        assert len({len(split.classes) for split in stream.train}) == 1
    for key, value in config.options.items():
        assert parts.options[key] == value
    assert list(tmp_path.iterdir()) == []


def test_the_digits_of_a_file_are_those_of_the_benchmark(tmp_path):
    config = resolve_config(file=read_config_file(shipped_path("er-digits")))
    parts = gather_ingredients(config, tmp_path / "store")
    assert parts.stream.class_order == load_stream("split-digits").class_order


def test_a_name_that_is_none_suggests_the_nearest():
    with pytest.raises(BadInputError, match="did you mean er-cifar100"):
        config_path("er-cifar10")


def test_a_method_may_be_written_as_it_is_called():
    assert shipped_path("der++-figlet94").name == "derpp-figlet94.yaml"


def test_a_name_far_from_all_points_to_the_list():
    with pytest.raises(BadInputError, match="carousel configs ls"):
        config_path("zzz")


def test_a_file_of_the_user_comes_before_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_path("er-digits") == shipped_path("er-digits") == shipped_path("er-digits.yaml")
    (tmp_path / "er-digits").write_text("epochs: 1\n")
    assert read_config_file(config_path("er-digits")) == {"epochs": 1}
    assert config_path("runs/er-digits").parts == ("runs", "er-digits")
