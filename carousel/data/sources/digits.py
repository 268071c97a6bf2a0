"""split-digits: handwritten digits that scikit-learn carries, the stream that is always there."""

from __future__ import annotations

import numpy as np

from carousel.data.dataset import ArrayDataset
from carousel.data.source import LoadOptions, Source

__all__ = ["SOURCE", "load"]

_LICENSE = "CC BY 4.0 (UCI Machine Learning Repository)"
_CITATION = "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998"


def load(options: LoadOptions) -> ArrayDataset:  # noqa: ARG001 - the loaders share a signature
    """1,797 digits of 8x8 pixels, uint8; the ink levels 0..16 of the source become 0..254."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return ArrayDataset.of(
        (digits.images * 15.9).astype(np.uint8),
        digits.target,
        class_names=[str(digit) for digit in range(10)],
        name="split-digits",
        meta={"license": _LICENSE, "citation": _CITATION},
    )


SOURCE = Source(
    name="split-digits",
    n_classes=10,
    shape=(1, 8, 8),
    samples=1797,
    experiences=5,
    license=_LICENSE,
    citation=_CITATION,
    missing=lambda root: None,  # noqa: ARG005 - scikit-learn is a core dependency
    load=load,
)
