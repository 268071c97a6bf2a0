import json

import numpy as np
import pytest
import torch

from carousel.data.dataset import ArrayDataset
from carousel.errors import BadInputError

IMAGES = np.zeros((4, 8, 8), np.uint8)


def test_labels_that_do_not_start_at_zero_are_remapped_and_keep_their_names():
    data = ArrayDataset.of(IMAGES, [7, 100, 7, 9])
    assert data.y.tolist() == [0, 2, 0, 1]
    assert data.class_names == ("7", "9", "100")


def test_string_labels_and_groups():
    data = ArrayDataset.of(IMAGES, ["cat", "ant", "cat", "ant"], group=["b", "a", "b", "c"])
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.class_names == ("ant", "cat")
    assert data.group.tolist() == [1, 0, 1, 2]


def test_class_names_are_positions():
    data = ArrayDataset.of(IMAGES, [1, 0, 1, 0], class_names=["zero", "one"])
    assert data.y.tolist() == [1, 0, 1, 0]
    assert data.class_names == ("zero", "one")


@pytest.mark.parametrize(
    ("shape", "layout", "stored"),
    [
        ((5, 8, 9), "auto", (1, 8, 9)),
        ((5, 3, 8, 9), "auto", (3, 8, 9)),
        ((5, 8, 9, 3), "auto", (3, 8, 9)),
        ((5, 3, 9, 3), "NHWC", (3, 3, 9)),
        ((5, 8, 9, 3), "NCHW", (8, 9, 3)),
        ((5, 12), "auto", (12, 1, 1)),
    ],
)
def test_axes(shape, layout, stored):
    data = ArrayDataset.of(np.zeros(shape, np.uint8), np.arange(5), layout=layout)
    assert data.shape == stored
    assert data.x.flags.c_contiguous


def test_channels_last_pixels_move_with_their_channel():
    x = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    assert np.array_equal(ArrayDataset.of(x, [0, 1]).x[:, 2], x[..., 2])


@pytest.mark.parametrize(
    ("given", "stored"),
    [("uint8", "uint8"), ("int64", "uint8"), ("float64", "float32"), ("bool", "float32")],
)
def test_dtypes(given, stored):
    assert ArrayDataset.of(IMAGES.astype(given), [0, 1, 0, 1]).x.dtype == stored


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_tensors(dtype):
    x = torch.rand(4, 3, 8, 8, dtype=dtype, requires_grad=True)
    data = ArrayDataset.of(x, torch.tensor([3, 4, 3, 4], dtype=torch.int16))
    assert data.x.dtype == np.float32
    assert data.y.dtype == np.int64


def test_own_test_set_shares_the_label_map():
    data = ArrayDataset.of(IMAGES, [5, 6, 8, 8], x_test=IMAGES[:2], y_test=[8, 6])
    assert data.y_test.tolist() == [2, 1]


def test_groups_of_train_and_test_share_numbers():
    data = ArrayDataset.of(
        IMAGES,
        [0, 1, 0, 1],
        group=list("aabb"),
        x_test=IMAGES,
        y_test=[0] * 4,
        group_test=list("cbaa"),
    )
    assert data.group.tolist() == [0, 0, 1, 1]
    assert data.group_test.tolist() == [2, 1, 0, 0]


NAN = np.zeros((4, 8, 8), np.float32)
NAN[2, 3, 3] = np.nan
BAD = {
    "no samples": ({"x": IMAGES[:0], "y": []}, "at least one sample"),
    "no sample axes": ({"x": np.zeros(4), "y": [0] * 4}, "shape"),
    "lengths differ": ({"x": IMAGES, "y": [0, 1, 0]}, "4 samples"),
    "negative label": ({"x": IMAGES, "y": [0, 1, -1, 0]}, r"y\[2\] is -1"),
    "float label": ({"x": IMAGES, "y": [0.0, 1.0, 0.0, 1.0]}, "dtype float64"),
    "label beyond names": (
        {"x": IMAGES, "y": [0, 1, 2, 0], "class_names": ["a", "b"]},
        "2 class names",
    ),
    "name without samples": (
        {"x": IMAGES, "y": [0, 1, 1, 0], "class_names": "abc"},
        "'c' has no sample",
    ),
    "names for strings": ({"x": IMAGES, "y": list("abab"), "class_names": "ab"}, "strings"),
    "NaN": ({"x": NAN, "y": [0, 1, 0, 1]}, r"x\[2\] holds NaN"),
    "wide integers": ({"x": IMAGES.astype(int) + 300, "y": [0, 1, 0, 1]}, "300 to 300"),
    "objects": ({"x": np.array([[None]] * 4), "y": [0, 1, 0, 1]}, "dtype object"),
    "ragged": ({"x": [[1, 2], [1]], "y": [0, 1]}, "one shape"),
    "test without labels": ({"x": IMAGES, "y": [0, 1, 0, 1], "x_test": IMAGES}, "pairs"),
    "test of other shape": (
        {"x": IMAGES, "y": [0, 1, 0, 1], "x_test": IMAGES[:, 1:], "y_test": [0] * 4},
        "one shape",
    ),
    "test label unknown": (
        {"x": IMAGES, "y": [0, 1, 0, 1], "x_test": IMAGES, "y_test": [0, 1, 2, 0]},
        "holds 2, which never occurs",
    ),
    "groups too few": ({"x": IMAGES, "y": [0, 1, 0, 1], "group": [0, 1]}, "one integer or string"),
    "groups of test only": ({"x": IMAGES, "y": [0, 1, 0, 1], "group_test": [0]}, "without group"),
    "layout": ({"x": IMAGES, "y": [0, 1, 0, 1], "layout": "CHW"}, "'CHW'"),
    "axes": ({"x": np.zeros((4, 2, 2, 2, 2)), "y": [0, 1, 0, 1]}, "2 to 4 axes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_value_and_the_fix(case):
    arguments, words = BAD[case]
    with pytest.raises(BadInputError, match=words):
        ArrayDataset.of(**arguments)


def test_meta_is_a_copy():
    meta = {"license": "mine"}
    data = ArrayDataset.of(IMAGES, [0, 1, 0, 1], meta=meta)
    meta["license"] = "yours"
    assert json.loads(json.dumps(data.meta)) == {"license": "mine"}
