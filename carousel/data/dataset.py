"""Labelled arrays, checked once: what every source of data gives and every stream is cut from.

Example:
    >>> import numpy as np
    >>> data = ArrayDataset.of(np.zeros((4, 8, 8), np.uint8), [7, 7, 9, 9])
    >>> data.x.shape, data.y.tolist(), data.class_names
    ((4, 1, 8, 8), [0, 0, 1, 1], ('7', '9'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from carousel.errors import BadInputError

__all__ = ["ArrayDataset", "Layout", "as_array"]

Layout = Literal["auto", "NCHW", "NHWC"]


@dataclass(frozen=True)
class ArrayDataset:
    """Samples, labels and groups of one source, in RAM, as they are stored in the memory.

    Build it with `ArrayDataset.of`, which checks and converts; the constructor trusts its caller.

    Attributes:
        x: (n, C, H, W) uint8 or float32.
        y: (n,) int64 in 0..len(class_names) - 1.
        class_names: the name of each label.
        group: (n,) int64 or None; samples of one group (a font, a person) are never split
            between training and test.
        x_test: test samples that the source itself sets apart, or None.
        y_test: their labels.
        group_test: their groups, or None.
        name: for messages and run folders.
        meta: licence, citation, versions, content hash; plain JSON values.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    group: NDArray[np.int64] | None = None
    x_test: NDArray[Any] | None = None
    y_test: NDArray[np.int64] | None = None
    group_test: NDArray[np.int64] | None = None
    name: str = "arrays"
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        group: ArrayLike | None = None,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        group_test: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        layout: Layout = "auto",
        name: str = "arrays",
        meta: Mapping[str, Any] | None = None,
    ) -> ArrayDataset:
        """Check arrays (numpy, torch or lists) and bring them into the form of this class.

        Args:
            x: (n, H, W), (n, C, H, W), (n, H, W, C), or vectors (n, D), which become D channels
                of one pixel; uint8, other integers within 0..255, or floats (kept as float32,
                used as they are).
            y: (n,) labels: non-negative integers that need not start at 0, or strings.
            group: (n,) integers or strings; samples of one group stay together.
            x_test: samples of a test set of its own; the shape is that of `x`.
            y_test: its labels, each of which occurs in `y`.
            group_test: its groups.
            class_names: the name of label 0, 1, ...; by default the labels as text.
            layout: where the channels are in 4-D data; "auto" takes the axis of size 1, 3 or 4,
                the first of the two when both fit.
            name: for messages and run folders.
            meta: plain JSON values that travel with the data.

        Raises:
            BadInputError: lengths differ, nothing is there, labels or pixels cannot be used.
        """
        if (x_test is None) != (y_test is None):
            raise BadInputError("x_test and y_test come in pairs", fix="give both or neither")
        pixels = _pixel_array(x, layout, "x")
        labels, names = _label_array(y, "y", len(pixels))
        tested = None if x_test is None else _pixel_array(x_test, layout, "x_test")
        test_labels, test_names = None, None
        if tested is not None and y_test is not None:
            if tested.shape[1:] != pixels.shape[1:] or tested.dtype != pixels.dtype:
                raise BadInputError(
                    f"x_test is {tested.dtype} {tested.shape[1:]} a sample, x is "
                    f"{pixels.dtype} {pixels.shape[1:]}",
                    fix="bring both to one shape and dtype",
                )
            test_labels, test_names = _label_array(y_test, "y_test", len(tested))
        all_names, maps = _join_labels(names, test_names, class_names)
        groups, test_groups = _join_groups(
            group, group_test, len(pixels), 0 if tested is None else len(tested)
        )
        return cls(
            x=pixels,
            y=maps[0][labels],
            class_names=all_names,
            group=groups,
            x_test=tested,
            y_test=None if test_labels is None else maps[1][test_labels],
            group_test=test_groups,
            name=name,
            meta=dict(meta or {}),
        )

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, (C, H, W)."""
        return tuple(int(size) for size in self.x.shape[1:])

    def __len__(self) -> int:
        return len(self.y)


def as_array(values: Any) -> NDArray[Any]:
    """Numbers of any kind as an array of numpy; a torch tensor comes to the CPU.

    Raises:
        BadInputError: the values are ragged.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadInputError(
            f"the values do not form one array ({error})", fix="bring all samples to one shape"
        ) from error


def _pixel_array(x: ArrayLike, layout: Layout, name: str) -> NDArray[Any]:
    """Samples as (n, C, H, W) uint8 or finite float32."""
    array = as_array(x)
    if array.ndim < 2 or array.size == 0:
        raise BadInputError(
            f"{name} has shape {array.shape}", fix="give at least one sample along the first axis"
        )
    array = _channels_first(_pixel_dtype(array, name), layout, name)
    if array.dtype == np.float32 and not (finite := np.isfinite(array)).all():
        row = int(np.flatnonzero(~finite.reshape(len(array), -1).all(axis=1))[0])
        raise BadInputError(
            f"{name}[{row}] holds NaN or infinite values", fix="repair or drop such samples first"
        )
    return np.ascontiguousarray(array)


def _pixel_dtype(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "fb":
        return array.astype(np.float32)
    if array.dtype.kind not in "iu":
        raise BadInputError(
            f"{name} has dtype {array.dtype}", fix="give uint8 pixels or floating-point values"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 255:
        raise BadInputError(
            f"{name} holds integers from {low} to {high}",
            fix="scale them to 0..255, or convert them to float32 yourself",
        )
    return array.astype(np.uint8)


def _channels_first(array: NDArray[Any], layout: Layout, name: str) -> NDArray[Any]:
    if layout not in ("auto", "NCHW", "NHWC"):
        raise BadInputError(f"layout is {layout!r}", fix='give "auto", "NCHW" or "NHWC"')
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 2:
        return array[:, :, None, None]
    if array.ndim != 4:
        raise BadInputError(f"{name} has shape {array.shape}", fix="give 2 to 4 axes")
    guessed_last = array.shape[1] not in (1, 3, 4) and array.shape[3] in (1, 3, 4)
    last = guessed_last if layout == "auto" else layout == "NHWC"
    return array.transpose(0, 3, 1, 2) if last else array


def _label_array(y: ArrayLike, name: str, samples: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Positions among the distinct labels, and these labels in their own order."""
    labels = as_array(y)
    if labels.shape != (samples,):
        raise BadInputError(
            f"{name} has shape {labels.shape} for {samples} samples", fix="give one label a sample"
        )
    if labels.dtype.kind not in "iuUS":
        raise BadInputError(
            f"{name} has dtype {labels.dtype}", fix="give labels as integers or as strings"
        )
    if labels.dtype.kind == "i" and labels.min() < 0:
        row = int(labels.argmin())
        raise BadInputError(
            f"{name}[{row}] is {labels[row]}", fix="labels are integers from 0 up, or strings"
        )
    distinct, positions = np.unique(labels, return_inverse=True)
    return positions.astype(np.int64).reshape(-1), distinct


def _join_labels(
    train: NDArray[Any], test: NDArray[Any] | None, class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Class names, and for each of the two label sets the map into them."""
    if test is not None and (strange := np.setdiff1d(test, train)).size:
        raise BadInputError(
            f"y_test holds {strange[0]!s}, which never occurs in y",
            fix="drop such test samples, or add training samples of that class",
        )
    if class_names is None:
        names = tuple(str(label) for label in train)
        maps = [np.searchsorted(train, part) for part in (train, test) if part is not None]
        return names, maps
    return tuple(class_names), _index_into(class_names, train, test)


def _index_into(
    class_names: Sequence[str], train: NDArray[Any], test: NDArray[Any] | None
) -> list[NDArray[np.int64]]:
    count = len(class_names)
    if train.dtype.kind not in "iu":
        raise BadInputError(
            "class_names is given and y holds strings", fix="leave class_names out, or number y"
        )
    if train[-1] >= count:
        raise BadInputError(
            f"y holds label {train[-1]} and there are {count} class names",
            fix=f"give labels from 0 to {count - 1}, or a name for each class",
        )
    if len(train) < count:
        absent = int(np.setdiff1d(np.arange(count), train)[0])
        raise BadInputError(
            f"class {class_names[absent]!r} has no sample", fix="name only classes with samples"
        )
    return [part.astype(np.int64) for part in (train, test) if part is not None]


def _join_groups(
    group: ArrayLike | None, group_test: ArrayLike | None, samples: int, tested: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if group is None:
        if group_test is not None:
            raise BadInputError("group_test is given without group", fix="give both or neither")
        return None, None
    parts = [as_array(group)] + ([] if group_test is None else [as_array(group_test)])
    for part, wanted, name in zip(parts, (samples, tested), ("group", "group_test"), strict=False):
        if part.shape != (wanted,) or part.dtype.kind not in "iuUS":
            raise BadInputError(
                f"{name} is {part.dtype} {part.shape} for {wanted} samples",
                fix="give one integer or string a sample",
            )
    _, numbers = np.unique(np.concatenate(parts), return_inverse=True)
    numbers = numbers.astype(np.int64).reshape(-1)
    return numbers[:samples], numbers[samples:] if group_test is not None else None
