"""What a revision means for the records of a medium."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from carousel.errors import CorruptRecordError, TierFullError
from carousel.storage.columns import Ids
from carousel.storage.failures import disk_error
from carousel.storage.index import Index
from carousel.storage.limits import Limits
from carousel.storage.plain.medium import Medium, Place, Read
from carousel.storage.plain.reader import chunks
from carousel.storage.revision import Revision
from carousel.storage.table import Buffer

__all__ = ["Rewrite"]


@dataclass(slots=True)
class Rewrite:
    """Records with new values, packed, and those that proved damaged on the way.

    Args:
        places: of the records.
        blobs: what `Medium.pack` made of them.
        damaged: ids that cannot be revised, and what is wrong.
    """

    places: list[Place] = field(default_factory=list)
    blobs: list[Buffer] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def ids(self) -> Ids:
        """(k,) ids of the records."""
        return np.array([place.id for place in self.places], np.int64)

    @property
    def lengths(self) -> Ids:
        """(k,) what the records cost: an image whose pixels change is packed to another size."""
        return np.array([len(blob) for blob in self.blobs], np.int64)

    @classmethod
    def of(cls, revision: Revision, index: Index, medium: Medium) -> Rewrite:
        """Read what is stored and put the new values in.

        Raises:
            SchemaMismatchError: a record has not got the fields.
            StorageIOError: a record cannot be read.
        """
        rewrite = cls()
        for rows in chunks(np.flatnonzero(index.contains(revision.ids))):
            ids = revision.ids[rows]
            found = index.lookup(ids)
            columns = zip(ids.tolist(), found.labels.tolist(), found.tasks.tolist(), strict=True)
            places = [Place(*column) for column in columns]
            reads = medium.read(ids.tolist())
            for row, place, read in zip(rows.tolist(), places, reads, strict=True):
                rewrite._take(revision, row, place, read, medium)
        return rewrite

    def check_room(self, index: Index, limits: Limits) -> None:
        """Refuse to grow beyond the budget.

        Raises:
            TierFullError: the records would take more than there is.
        """
        growth = int(self.lengths.sum() - index.lookup(self.ids).lengths.sum())
        most = limits.max_bytes
        if most is not None and growth > 0 and index.total_length + growth > most:
            raise TierFullError("the revised records are larger and the storage budget is full")

    def _take(self, revision: Revision, row: int, place: Place, read: Read, medium: Medium) -> None:
        try:
            if isinstance(read, Exception):
                raise read
            self.blobs.append(medium.pack(revision.applied(read, row)))
            self.places.append(place)
        except (CorruptRecordError, KeyError) as error:
            self.damaged[place.id] = str(error)
        except OSError as error:
            raise disk_error(error, f"sample {place.id} cannot be read") from error
