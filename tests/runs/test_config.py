from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.runs.config import (
    TrainConfig,
    dump_config,
    parse_assignments,
    read_config_file,
    resolve_config,
)


def test_command_line_wins_over_file_wins_over_defaults():
    config = resolve_config(
        file={"lr": 0.5, "epochs": 7, "strategy.loss": "bce"},
        command_line={"lr": 0.25, "strategy.alpha": 0.1},
    )
    assert (config.lr, config.epochs, config.batch_size) == (0.25, 7, 32)
    assert config.options == {"loss": "bce", "alpha": 0.1}


def test_paths_mean_the_same_from_any_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = resolve_config(file={"storage": "db", "data_root": "~/data"})
    assert config.storage == tmp_path / "db"
    assert config.data_root == Path("/home/me/data")


def test_keys_may_be_written_as_flags():
    assert resolve_config(file={"batch-size": 8}).batch_size == 8


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("memroy_size", "memory_size"), ("swap_rate", "swap_ratio"), ("batchsize", "batch_size")],
)
def test_an_unknown_key_suggests_the_nearest(key, nearest):
    with pytest.raises(BadInputError, match=f"did you mean {nearest}"):
        resolve_config(file={key: 1})


@pytest.mark.parametrize("key", ["temperature", "loss", "cutmix-p", "distill_weight"])
def test_an_option_of_a_strategy_is_told_its_key(key):
    with pytest.raises(BadInputError, match=f"did you mean strategy.{key.replace('-', '_')}"):
        resolve_config(file={key: 1})


def test_an_unknown_key_without_a_near_one_lists_no_names():
    with pytest.raises(BadInputError) as caught:
        resolve_config(file={"zzz": 1})
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("given_as", "numbers"),
    [
        ([49, 63], (49, 63)),
        ("49,63", (49, 63)),
        (["49", "63"], (49, 63)),
        (["49, 63"], (49, 63)),
        (49, (49,)),
        ([], ()),
    ],
)
def test_milestones_may_be_written_as_flags_write_them(given_as, numbers):
    assert resolve_config(command_line={"lr_milestones": given_as}).lr_milestones == numbers


def test_a_milestone_that_is_no_number_is_named():
    with pytest.raises(BadInputError, match="lr_milestones is 'late': give a whole number"):
        resolve_config(command_line={"lr_milestones": "49,late"})


def test_a_class_order_is_a_name_or_all_labels():
    for given_as in ([2, 0, 1], "2,0,1", "2, 0, 1"):
        assert resolve_config(command_line={"class_order": given_as}).class_order == (2, 0, 1)
    assert resolve_config(command_line={"class_order": "sorted"}).class_order == "sorted"


@pytest.mark.parametrize("key", ["options", "strategy."])
def test_keys_that_only_look_known(key):
    with pytest.raises(BadInputError):
        resolve_config(file={key: {}})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("swap_ratio", 1.5, "less than or equal to 1"),
        ("swap_ratio", -0.1, "greater than or equal to 0"),
        ("epochs", 0, "greater than or equal to 1"),
        ("epochs", "many", "give a whole number"),
        ("epochs", 1.5, "give a whole number"),
        ("epochs", None, "give a whole number"),
        ("lr", "fast", "give a number"),
        ("lr", float("inf"), "give a number"),
        ("sync", "perhaps", "give true or false"),
        ("memory_size", [1], "64MiB"),
        ("strategy", {"loss": "bce"}, "strategy.loss"),
        ("gate", 3, "give a name"),
        ("storage", 3, "give a path"),
        ("lr", -1, "greater than 0"),
        ("optimizer", "adam", "did you mean adamw"),
        ("durability", "bound", "did you mean bounded"),
        ("logger", ["tensorbord"], "tensorboard"),
        ("seed", -3, "greater than or equal to 0"),
        ("augment", "crop_flip", "did you mean crop-flip"),
        ("lr_milestones", True, "give a list"),
        ("lr_gamma", 0, "greater than 0"),
        ("resize", 0, "greater than or equal to 1"),
    ],
)
def test_a_bad_value_is_named_with_its_fix(key, value, words):
    with pytest.raises(BadInputError) as caught:
        resolve_config(command_line={key: value})
    assert str(caught.value).startswith(f"{key} is ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_set_reads_yaml_scalars():
    given = ["lr=1e-3", "sync=true", "storage=null", "logger=[csv]", "model=a:b", "out=", "x=a=b"]
    assert parse_assignments(given) == {
        "lr": 0.001,
        "sync": True,
        "storage": None,
        "logger": ["csv"],
        "model": "a:b",
        "out": None,
        "x": "a=b",
    }


@pytest.mark.parametrize("text", ["lr", "=3", "lr=[1"])
def test_set_refuses_what_is_no_assignment(text):
    with pytest.raises(BadInputError, match="--set"):
        parse_assignments([text])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("lr: [1", "not valid YAML"),
        ("- lr", "holds no keys"),
        ("3: 4", "holds no keys"),
        (b"\xff\xfe\x00", "not valid YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, words):
    path = tmp_path / "study.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInputError, match=words):
        read_config_file(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInputError, match=r"nothing\.yaml cannot be read"):
        read_config_file(tmp_path / "nothing.yaml")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_config_file(tmp_path)


def test_an_empty_file_is_all_defaults(tmp_path):
    path = tmp_path / "empty.yaml"
    path.touch()
    assert resolve_config(file=read_config_file(path)) == TrainConfig()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "lr": st.floats(1e-9, 10),
            "epochs": st.integers(1, 99),
            "memory_size": st.one_of(st.integers(1, 999), st.sampled_from(["64MiB", "1e3KB"])),
            "storage": st.sampled_from(["a/b", "ü", "null"]),
            "sync": st.booleans(),
            "logger": st.lists(st.sampled_from(["csv", "wandb"]), max_size=2),
            "lr_milestones": st.lists(st.integers(1, 99), max_size=3),
            "class_order": st.one_of(
                st.sampled_from(["sorted", "icarl-cifar100"]), st.permutations(range(4))
            ),
            "strategy.alpha": st.one_of(st.floats(0, 1), st.text(max_size=5), st.booleans()),
        },
    )
)
@example(values={"strategy.alpha": "\x85"})
def test_what_is_saved_is_read_back_as_the_same_run(values):
    config = resolve_config(command_line=values)
    again = resolve_config(file=yaml.safe_load(dump_config(config)))
    assert again == config
    assert again.storage is None or isinstance(again.storage, Path)
