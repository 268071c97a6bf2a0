"""Orders in which the classes of published experiments arrive."""

from __future__ import annotations

from collections.abc import Sequence

from carousel.errors import BadInputError

__all__ = ["CLASS_ORDERS", "check_class_order", "class_order"]

# fmt: off
_ICARL_CIFAR100 = (
    87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86,
    84, 96, 18, 24, 32, 45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83,
    17, 81, 41, 12, 37, 59, 25, 20, 80, 73, 1, 28, 6, 46, 62, 82, 53, 9, 31, 75,
    38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70, 90, 89, 43, 5, 42, 65, 76,
    40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54, 26, 35, 39,
)
_ICARL_IMAGENET100 = (
    68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89, 3, 92, 55, 9, 26, 80, 43, 38,
    58, 70, 77, 1, 85, 19, 17, 50, 28, 53, 13, 81, 45, 82, 6, 59, 83, 16, 15, 44,
    91, 41, 72, 60, 79, 52, 20, 10, 31, 54, 37, 95, 14, 71, 96, 98, 97, 2, 64, 66,
    42, 22, 35, 86, 24, 34, 87, 21, 99, 0, 88, 27, 18, 94, 11, 12, 47, 25, 30, 46,
    62, 69, 36, 61, 7, 63, 75, 5, 32, 4, 51, 48, 73, 93, 39, 67, 29, 49, 57, 33,
)
# fmt: on

CLASS_ORDERS: dict[str, tuple[int, ...]] = {
    "icarl-cifar100": _ICARL_CIFAR100,
    "icarl-imagenet100": _ICARL_IMAGENET100,
}
"""Labels in the order of arrival. The second is the permutation of numpy's seed 1993."""

_FREE = ("random", "sorted")


def check_class_order(order: str | Sequence[int]) -> None:
    """Refuse an order that no data set could have.

    Raises:
        BadInputError: there is no order of this name, or a label comes twice or is missing.
    """
    if isinstance(order, str):
        if order not in (*_FREE, *CLASS_ORDERS):
            known = ", ".join((*_FREE, *CLASS_ORDERS))
            raise BadInputError(
                f"class order {order!r} is unknown", fix=f"use one of {known}, or list all labels"
            )
    elif sorted(order) != list(range(len(order))):
        raise BadInputError(
            "class_order does not name every label once", fix="list the labels from 0 on, each once"
        )


def class_order(order: str | Sequence[int], n_classes: int) -> tuple[int, ...] | None:
    """The labels in the order of arrival, None for a random one.

    Args:
        order: ``"random"``, ``"sorted"``, a name of `CLASS_ORDERS`, or all labels.
        n_classes: of the data set.

    Raises:
        BadInputError: see `check_class_order`, or the data set has another number of classes.

    Example:
        >>> class_order("sorted", 3), class_order([2, 0, 1], 3)
        ((0, 1, 2), (2, 0, 1))
    """
    check_class_order(order)
    if order == "random":
        return None
    if order == "sorted":
        return tuple(range(n_classes))
    labels = CLASS_ORDERS[order] if isinstance(order, str) else tuple(order)
    if len(labels) != n_classes:
        raise BadInputError(
            f"class_order has {len(labels)} labels and the data set {n_classes} classes",
            fix="list every label once, or use random",
        )
    return labels
