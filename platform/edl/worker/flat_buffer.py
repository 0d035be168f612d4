"""The layout of a model's values in messages to and from the parameter servers.

All dense variables form one flat float32 buffer; each PS owns one slice of it. PS-backed tables are
sent as ids and rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics import aligned_memory
from edl.numerics.array_types import Floats
from edl.transport import edl_pb2 as pb
from edl.transport.spec_messages import table_to_message, variable_to_message


class FlatLayout:
    """The flat layout of one model, and its declaration to each PS.

    Args:
        variables: the variables in the order of the flat buffer: by PS, trained ones before statistics.
        slices: the slice of the flat buffer of each PS.
        tables: the PS-backed tables.
        fingerprint: the model's fingerprint.
        initial: the initial values of the whole flat buffer.
        optimizer: the OptimizerSpec as JSON.
    """

    def __init__(
        self,
        variables: Sequence[VariableSpec],
        slices: Sequence[slice],
        tables: Sequence[TableSpec],
        fingerprint: str,
        initial: Floats,
        optimizer: str,
    ) -> None:
        self.ps_slices = tuple(slices)
        self.ps_indices = range(len(self.ps_slices))
        self.dim_by_table = {table.name: table.dim for table in tables}
        self.size = initial.size
        self._variables = tuple(variables)
        self._tables = tuple(tables)
        self._fingerprint = fingerprint
        self._initial = np.ascontiguousarray(initial, np.float32)
        self._optimizer = optimizer

    def slice_bytes(self, flat_values: Floats, ps_index: int) -> memoryview:
        """The bytes of one PS' slice, writable."""
        # A memoryview of an empty array cannot be cast.
        return (
            flat_values[self.ps_slices[ps_index]].data.cast("B")
            if self._byte_count(ps_index)
            else memoryview(bytearray())
        )

    def store_reply(self, flat_values: Floats, ps_index: int, body: memoryview) -> bool:
        """Store the body of an answer in its slice; False if the answer has no values."""
        if body.nbytes != self._byte_count(ps_index):
            return False
        # The connection usually received directly into this memory.
        own_bytes = self.slice_bytes(flat_values, ps_index)
        if body.nbytes and not np.shares_memory(np.frombuffer(body, np.uint8), np.frombuffer(own_bytes, np.uint8)):
            own_bytes[:] = body
        return True

    def encode_declaration(self, ps_index: int) -> tuple[pb.Declare, Floats]:
        """Head and body of the Declare frame for one PS."""
        head = pb.Declare(
            dense=[variable_to_message(variable) for variable in self.variables_of_ps(ps_index)],
            tables=[table_to_message(table) for table in self._tables],
            optimizer=self._optimizer,
            fingerprint=self._fingerprint,
        )
        return head, self._initial[self.ps_slices[ps_index]]

    def variables_of_ps(self, ps_index: int) -> list[VariableSpec]:
        """The variables of one PS, in the order of the flat buffer."""
        ps_slice, offset, owned = self.ps_slices[ps_index], 0, []
        for variable in self._variables:
            if ps_slice.start <= offset < ps_slice.stop:
                owned.append(variable)
            offset += variable.size
        return owned

    def _byte_count(self, ps_index: int) -> int:
        return 4 * int(self.ps_slices[ps_index].stop - self.ps_slices[ps_index].start)


class _LendableBuffer:
    """One buffer, and whether a view of it is still in use."""

    def __init__(self, size: int) -> None:
        self.values = aligned_memory.allocate_aligned(size)
        self._lent_view: weakref.ref[Floats] | None = None

    @property
    def view_in_use(self) -> Floats | None:
        """The lent view, if it is still in use."""
        return None if self._lent_view is None else self._lent_view()

    def lend(self) -> Floats:
        view = self.view_in_use
        if view is None:
            view = self.values[:]
            self._lent_view = weakref.ref(view)
        return view


class DoubleBuffer:
    """Two buffers, so that arriving values never overwrite those that a step may still read.

    TensorFlow reads lent memory without a copy, and may hold it for longer than a step. Such memory is not
    written to; a new buffer replaces it.

    Attributes:
        is_fresh: whether the newest values are complete.
    """

    def __init__(self, layout: FlatLayout) -> None:
        self._current = _LendableBuffer(layout.size)
        self._spare = _LendableBuffer(layout.size)
        self._lent_buffer: _LendableBuffer | None = None
        self.is_fresh = False

    @property
    def newest_values(self) -> Floats:
        return self._current.values

    def lend(self) -> Floats:
        """Lend the latest values; the view that was lent before may be overwritten from now on."""
        self._lent_buffer = self._current
        return self._current.lend()

    def next_values(self) -> Floats:
        """A buffer that no step reads, to receive values into."""
        # The latest values are not lent: overwrite them rather than the older ones that a step reads.
        if self._current is not self._lent_buffer:
            # Until all of the next values have arrived, the buffer is a mixture.
            self.is_fresh = False
            return self._current.values
        # Somebody still holds the older buffer: leave it to them.
        if self._spare.view_in_use is not None:
            self._spare = _LendableBuffer(self._current.values.size)
        return self._spare.values

    def publish_next(self, *, complete: bool) -> None:
        """Publish the next values. ``complete``: all of them have arrived."""
        if self._current is self._lent_buffer:
            self._current, self._spare = self._spare, self._current
        self.is_fresh = complete
