"""A batch is cut into pieces that keep to their bounds and lose nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.errors import SchemaMismatchError
from carousel.storage.codec import decode
from carousel.storage.lmdb.put import join, pieces
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300), max_size=40),
    max_bytes=st.integers(1, 2000),
    max_records=st.integers(1, 10),
)
def test_pieces_keep_to_their_bounds_in_order(sizes, max_bytes, max_records):
    ids = np.arange(len(sizes))
    values = [bytes([size % 256]) * size for size in sizes]
    layout = (FieldSpec("b", ENCODED), FieldSpec("i", "int64"))
    batch = RecordBatch(ids, ids * 2, ids * 3, layout, {"b": values, "i": ids})
    puts = list(pieces(batch, max_bytes, max_records))
    for put in puts:
        assert 1 <= len(put) <= max_records
        assert put.nbytes <= max_bytes or len(put) == 1
    back = [decode(record) for put in puts for record in put.records]
    assert [record.id for record in back] == ids.tolist()
    assert [record.fields["b"] for record in back] == values
    if puts:
        whole = join(puts)
        assert whole.ids.tolist() == ids.tolist()
        assert whole.labels.tolist() == (ids * 2).tolist()
        assert whole.tasks.tolist() == (ids * 3).tolist()
        assert len(whole.records) == len(ids)


def test_the_whole_batch_is_checked_before_the_first_piece():
    ids = np.arange(3)
    batch = RecordBatch(ids, ids, ids, (FieldSpec("b", ENCODED),), {"b": [b"", b"", "text"]})
    with pytest.raises(SchemaMismatchError):
        next(pieces(batch, 10, 1))


def test_the_columns_may_be_reused():
    ids = np.arange(3)
    batch = RecordBatch(ids, ids.copy(), ids.copy(), (), {})
    put = next(pieces(batch, 1000, 10))
    ids[:] = 9
    assert put.ids.tolist() == [0, 1, 2]
