import pytest
from PIL import Image

from carousel.data import load_stream
from carousel.errors import BadInputError


@pytest.fixture
def root(tmp_path):
    """The layout of Tiny-ImageNet with two training images and one test image a class."""
    folder = tmp_path / "tiny-imagenet-200"
    names = [f"n{number:08d}" for number in range(200)]
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(names))
    (folder / "words.txt").write_text("\n".join(f"{name}\tthing" for name in names))
    lines = []
    for number, name in enumerate(names):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        for copy in (1, 0):
            Image.new("RGB", (64, 64), (number, copy, 0)).save(images / f"{name}_{copy}.png")
        Image.new("L", (64, 64), number).save(folder / "val" / "images" / f"val_{number}.png")
        lines.append(f"val_{number}.png\t{name}\t0\t0\t9\t9")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return tmp_path


def test_images_come_in_the_order_of_class_and_name(root):
    seen = []
    stream = load_stream(
        "split-tiny-imagenet", root=root, seed=None, progress=lambda done, total: seen.append(done)
    )
    assert stream.input_shape == (3, 64, 64)
    assert [len(split) for split in (*stream.train, *stream.test)] == [40] * 10 + [20] * 10
    x = stream.train[0].x
    assert x[:4, :2, 0, 0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert stream.train[0].y[:4].tolist() == [0, 0, 1, 1]
    assert stream.test[0].x[7, :, 0, 0].tolist() == [7, 7, 7]
    assert seen == list(range(1, 601))


def test_an_image_of_another_size_is_named(root):
    path = root / "tiny-imagenet-200" / "val" / "images" / "val_3.png"
    Image.new("RGB", (32, 64)).save(path)
    with pytest.raises(BadInputError, match=r"val_3\.png is 32x64"):
        load_stream("split-tiny-imagenet", root=root)
