"""The table of methods against edl.proto, so that neither can drift."""

from __future__ import annotations

import pytest

from edl.transport import edl_pb2
from edl.transport.control_methods import ControlMethod, MasterMethods, PsControlMethods


@pytest.mark.parametrize("service", [MasterMethods, PsControlMethods])
def test_every_method_of_the_protocol_is_in_the_table(service: type) -> None:
    described = edl_pb2.DESCRIPTOR.services_by_name[service.__name__.removesuffix("Methods")]
    table = {name: value for name, value in vars(service).items() if isinstance(value, ControlMethod)}
    assert set(table) == {method.name for method in described.methods}
    for method in described.methods:
        entry = table[method.name]
        assert entry.path == f"/{described.full_name}/{method.name}"
        assert entry.name == method.name
        assert entry.request.DESCRIPTOR is method.input_type
        assert entry.reply.DESCRIPTOR is method.output_type
