from __future__ import annotations

import pytest
import yaml

from carousel.errors import BadInputError
from carousel.runs.config import read_config_file
from carousel.runs.shipped import list_shipped, shipped_path
from carousel.runs.study.settings import dump_study, parse_strategies, plan_study, sweep_values
from carousel.strategies.registry import list_strategies, strategy_info


def test_all_is_every_strategy_with_a_memory():
    names = parse_strategies("all")
    assert names == [name for name in list_strategies() if strategy_info(name).has_memory]
    assert "naive" not in names


def test_all_may_be_joined_by_others_and_hides_no_misspelt_name():
    assert parse_strategies("joint,all,er") == [*parse_strategies("all"), "joint"]
    with pytest.raises(BadInputError, match="unknown strategy 'foo'"):
        parse_strategies("all,foo")


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("0,5", (0, 5)), ("7,", (7,)), (" 1 , 2", (1, 2))]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert plan_study(strategies="er", seeds=text).seeds == seeds


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "three", "", "1,1", "0,-2", ","])
def test_seeds_that_are_none_are_refused(text):
    with pytest.raises(BadInputError, match=r"seeds is .*: give how many, such as 3, or which"):
        plan_study(strategies="er", seeds=text)


def test_a_seed_that_is_given_twice_is_told_as_such():
    with pytest.raises(BadInputError, match="or which, such as 0,1,2, each once"):
        plan_study(strategies="er", seeds="1,1")


@pytest.mark.parametrize("text", ["epochs=1,", "epochs=1, ", "epochs=1,,2"])
def test_a_comma_with_nothing_beside_it_is_refused(text):
    with pytest.raises(BadInputError, match="has an empty value: give a value on both sides"):
        plan_study(strategies="er", assignments=[text])


@pytest.mark.parametrize("value", [True, 0, [], ["a"], [0, 0], {"a": 1}, 2.0])
def test_seeds_of_a_file_are_checked_too(value):
    with pytest.raises(BadInputError, match="seeds is"):
        plan_study(file={"strategies": ["er"], "seeds": value})


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("swap_ratio=0.2", 0.2),
        ("swap_ratio=0.2,0.5,1", [0.2, 0.5, 1]),
        ("swap-ratio=[0.2, 0.5]", [0.2, 0.5]),
        ("swap_ratio=1e-1,5e-1", [0.1, 0.5]),
        ("swap_ratio=[1e-1]", [0.1]),
    ],
)
def test_several_values_are_a_sweep(assignment, value):
    study = plan_study(strategies="er", assignments=[assignment])
    assert study.common == {"swap_ratio": value}


def test_sizes_and_names_stay_text():
    study = plan_study(strategies="er", assignments=["memory_size=200,1MiB", "gate=all,random"])
    assert study.common == {"memory_size": [200, "1MiB"], "gate": ["all", "random"]}


def test_a_setting_that_is_a_list_is_swept_by_lists():
    assert sweep_values("logger", ["csv"]) is None
    assert sweep_values("logger", [["csv"], []]) == [["csv"], []]


def test_the_command_line_wins_over_the_file_and_methods_over_common_settings():
    file = {
        "strategies": {"er": {"epochs": 9, "lr": 0.5}, "naive": None},
        "epochs": 1,
        "lr": 0.1,
        "seeds": 2,
    }
    study = plan_study(file=file)
    assert study.settings_of("er") == {"epochs": 9, "lr": 0.5}
    assert study.settings_of("naive") == {"epochs": 1, "lr": 0.1}
    study = plan_study(file=file, seeds="1", assignments=["epochs=3"])
    assert study.settings_of("er") == {"epochs": 3, "lr": 0.5}
    assert study.seeds == (0,)


def test_some_methods_of_a_file_keep_their_settings_and_so_do_the_bounds():
    file = {"strategies": {"er": {"epochs": 9}, "joint": {"epochs": 2}, "naive": {}}}
    study = plan_study(file=file, strategies="er")
    assert list(study.strategies) == ["er", "naive", "joint"]
    assert study.settings_of("joint") == {"epochs": 2}
    study = plan_study(file=file, strategies="er", bounds=False)
    assert list(study.strategies) == ["er"]


def test_a_method_may_have_seeds_of_its_own_and_bounds_have_all():
    study = plan_study(file={"strategies": {"er": {"seeds": 4}, "joint": {"seeds": [0]}}})
    assert study.seeds_of("er") == (0, 1, 2, 3)
    assert study.seeds_of("naive") == (0, 1, 2, 3)
    assert study.seeds_of("joint") == (0,)
    assert "seeds" not in study.settings_of("er")


def test_yaml_reads_on_and_off_as_truth():
    for value, swap in ((True, "on"), (False, "off"), ("both", "both")):
        assert plan_study(file={"strategies": "er", "swap": value}).swap == swap


def test_a_study_is_saved_as_its_own_file():
    file = {"strategies": {"er": {"gate": ["all", "random"], "seeds": 2}}, "swap": "on"}
    study = plan_study(file=file, benchmark="split-digits", assignments=["lr=1e-3,1e-2"])
    assert plan_study(file=yaml.safe_load(dump_study(study))) == study


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"strategies": "err"}, "unknown strategy 'err': did you mean er"),
        ({"strategies": ""}, "no strategies are named: give --strategies"),
        ({}, "no strategies are named"),
        ({"file": {"strategies": {"err": {}}}}, "did you mean er"),
        ({"file": {"strategies": {"er": 3}}}, "the settings of er are 3"),
        ({"file": {"strategies": 3}}, "strategies is 3"),
        ({"swap": "maybe"}, "swap is 'maybe': give both, on or off"),
        ({"file": {"strategies": "er", "bounds": 3}}, "bounds is 3"),
        ({"assignments": ["seed=1"]}, "seed is not a setting of a study: use --seeds"),
        ({"assignments": ["no-swap=true"]}, "use --swap"),
        ({"file": {"strategies": {"er": {"strategy": "er"}}}}, "use --strategies"),
        ({"assignments": ["storage=db"]}, "every run has its storage"),
        ({"assignments": ["lr=1", "lr=2"]}, "--set lr is given twice: give its values at once"),
        ({"assignments": ["lr=0.1,0.1"]}, "give each value once"),
        ({"assignments": ["lr=[]"]}, "a sweep over no values"),
        ({"assignments": ["lr"]}, "has no value"),
        ({"assignments": ["swap=on"]}, "swap cannot be set here: give --swap"),
    ],
)
def test_bad_input_is_one_sentence(words, message):
    words = {"strategies": "er"} | words if "file" not in words and words else words
    with pytest.raises(BadInputError, match=message):
        plan_study(**words)


def test_without_a_file_methods_have_the_settings_that_come_with_carousel():
    study = plan_study(strategies="er,gdumb", benchmark="figlet-94", assignments=["epochs=1"])
    assert study.shipped == ("er-figlet94", "gdumb-figlet94")
    assert study.settings_of("er")["batch_size"] == study.settings_of("joint")["batch_size"] == 64
    assert study.settings_of("gdumb")["batch_size"] == 16
    assert study.settings_of("gdumb")["epochs"] == 1
    assert plan_study(file=yaml.safe_load(dump_study(study))) == study


def test_the_defaults_of_train_are_a_choice_and_what_there_is_else():
    for words in ({"benchmark": "npz:x"}, {"defaults": True}, {"file": {}}):
        study = plan_study(strategies="er", **words)
        assert study.shipped == ()
        assert not {"epochs", "memory_size"} & study.settings_of("er").keys()


def test_the_file_of_a_run_is_a_study_of_its_method():
    study = plan_study(file={"strategy": "er", "epochs": 4})
    assert (list(study.strategies), study.common) == (["er"], {"epochs": 4})
    with pytest.raises(BadInputError, match="strategy is not a setting of a study"):
        plan_study(file={"strategy": "er"}, strategies="er")


@pytest.mark.parametrize("config", list_shipped(), ids=lambda config: config.name)
def test_nothing_that_comes_with_carousel_is_taken_for_a_sweep(config):
    settings = read_config_file(shipped_path(config.name))
    assert not [key for key, value in settings.items() if sweep_values(key, value) is not None]
