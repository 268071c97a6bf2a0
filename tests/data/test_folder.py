import numpy as np
import pytest
from PIL import Image

from carousel.data import load_dataset, load_stream
from carousel.errors import BadInputError


def image(path, colour=(10, 20, 30), size=(6, 5), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def tree(tmp_path):
    for number in range(6):
        image(tmp_path / "cat" / f"{number}.png", (number, 0, 0))
        image(tmp_path / "dog" / "deep" / f"{number}.JPG", (0, number, 0))
    (tmp_path / "cat" / "notes.txt").write_text("ignored")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_a_folder_a_class(tree):
    data = load_dataset(f"folder:{tree}")
    assert data.class_names == ("cat", "dog")
    assert data.x.shape == (12, 3, 5, 6)
    assert data.x[:6, 0, 0, 0].tolist() == list(range(6))
    stream = load_stream(f"folder:{tree}", experiences=2)
    assert [len(split) for split in stream.train] == [5, 5]


def test_train_and_test_folders(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for label in ("a", "b"):
            for number in range(count):
                image(tmp_path / part / label / f"{number}.png")
    stream = load_stream(f"folder:{tmp_path}")
    assert [len(split) for split in (*stream.train, *stream.test)] == [4, 4, 2, 2]


def test_grey_images_have_one_channel_and_mixed_ones_three(tmp_path):
    image(tmp_path / "a" / "0.png", 7, mode="L")
    image(tmp_path / "b" / "0.png", 9, mode="L")
    assert load_dataset(f"folder:{tmp_path}").x[:, :, 0, 0].tolist() == [[7], [9]]
    image(tmp_path / "b" / "1.png", (1, 2, 3))
    assert load_dataset(f"folder:{tmp_path}").x[:, :, 0, 0].tolist() == [
        [7, 7, 7],
        [9, 9, 9],
        [1, 2, 3],
    ]


def test_mixed_sizes_name_the_file_unless_resized(tree):
    image(tree / "dog" / "wide.png", size=(9, 5))
    with pytest.raises(BadInputError, match=r"wide\.png is 9x5 pixels"):
        load_stream(f"folder:{tree}")
    assert load_stream(f"folder:{tree}", resize=8).input_shape == (3, 8, 8)


def test_progress_counts_every_image(tree):
    seen = []
    load_stream(f"folder:{tree}", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 12) for number in range(1, 13)]


def test_damaged_images_are_named(tree):
    path = tree / "cat" / "broken.png"
    path.write_bytes(b"not an image")
    with pytest.raises(BadInputError, match=r"broken\.png is no readable image"):
        load_stream(f"folder:{tree}")
    image(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInputError, match=r"broken\.png is no readable image"):
        load_stream(f"folder:{tree}")


def test_deep_images_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((5, 6), np.uint16)).save(tmp_path / "a" / "0.png")
    with pytest.raises(BadInputError, match="more than 8 bits"):
        load_stream(f"folder:{tmp_path}")


def test_bad_folders(tmp_path):
    with pytest.raises(BadInputError, match="there is no folder"):
        load_stream(f"folder:{tmp_path / 'nothing'}")
    with pytest.raises(BadInputError, match="no sub-folders"):
        load_stream(f"folder:{tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="no PNG or JPEG"):
        load_stream(f"folder:{tmp_path}")
    with pytest.raises(BadInputError, match="resize is 0"):
        load_stream(f"folder:{tmp_path}", resize=0)
