import subprocess
import sys

import pytest

from carousel.data import list_benchmarks, load_dataset, load_stream
from carousel.errors import BadInputError, DatasetMissingError

NAMES = [
    "split-digits",
    "figlet-94",
    "glyph-94",
    "split-mnist",
    "split-cifar10",
    "split-cifar100",
    "split-tiny-imagenet",
]


def test_every_benchmark_says_what_it_is_and_how_to_get_it(tmp_path):
    infos = list_benchmarks(tmp_path)
    assert [info.name for info in infos] == NAMES
    for info in infos:
        assert info.available == (info.how_to_get == "")
        assert len(info.shape) == 3
        assert info.license
        assert info.citation
        assert 1 < info.experiences <= info.n_classes <= info.samples


def test_listing_imports_no_torch_and_builds_nothing(tmp_path):
    code = (
        "import sys; from carousel.data import list_benchmarks; list_benchmarks(); "
        "heavy = {'torch', 'torchvision', 'avalanche', 'sklearn', 'pyfiglet'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split-digit", "did you mean split-digits"),
        ("figlet", "did you mean figlet-94"),
        ("imagenet", "split-tiny-imagenet"),
        ("", "choose one of split-digits"),
        ("folder:", "folder:PATH"),
        ("zip:mine", "npz:FILE"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, words):
    with pytest.raises(BadInputError, match=words):
        load_stream(name)


@pytest.mark.parametrize("name", NAMES[3:])
def test_absent_files_say_where_to_put_them(name, tmp_path):
    with pytest.raises(DatasetMissingError, match="--data-root") as caught:
        load_stream(name, root=tmp_path)
    assert str(tmp_path) in caught.value.fix


def test_absent_fonts_and_packages_say_what_to_install(tmp_path, monkeypatch):
    from carousel.data.sources import figlet, glyph

    monkeypatch.setattr(figlet, "package_present", lambda name: False)
    with pytest.raises(DatasetMissingError, match=r"pip install 'carousel-memory\[data\]'"):
        load_stream("figlet-94")
    with pytest.raises(DatasetMissingError, match="pip install"):
        load_stream("figlet-94", download=True)
    monkeypatch.setattr(glyph, "FONT_FOLDER", tmp_path)
    with pytest.raises(DatasetMissingError, match="apt-get install fonts-aenigma"):
        load_stream("glyph-94")
    assert [i.available for i in list_benchmarks()[:3]] == [True, False, False]


def test_the_usual_number_of_experiences():
    assert len(load_stream("split-digits").train) == 5
    assert len(load_stream("split-digits", experiences=2).train) == 2


def test_a_data_set_that_is_not_cut():
    data = load_dataset("split-digits")
    assert len(data) == 1797
    assert data.x.max() == 254
    assert data.shape == (1, 8, 8)
