"""Names that users' models and exported files import: they stay importable from where they are, whatever moves."""

from __future__ import annotations

from importlib import import_module

import pytest

USER_IMPORTS = (
    ("edl.layers", "Embedding"),
    ("edl.layers.embedding", "Embedding"),  # the module that `.keras` files name
    ("edl.layers", "adapt_from"),
    ("edl.data", "BlockReader"),
    ("edl.data", "BlockSizes"),
    ("edl.data", "CorruptRange"),
    ("edl.data", "CorruptRecordError"),
    ("edl.data", "Metadata"),
    ("edl.data", "OnCorrupt"),
    ("edl.data", "Reader"),
    ("edl.data", "Record"),
    ("edl.data", "Source"),
    ("edl.data", "Writer"),
    ("edl.data", "open_reader"),
    ("edl.data", "parse_example"),
    ("edl.data", "serialize_example"),
    ("edl.data.recordio.reader", "RecordIOReader"),
    ("edl.data.recordio.writer", "Writer"),
    ("edl.sharding", "Client"),
    ("edl.keras.group_ftrl", "GroupFtrl"),
    ("edl.worker.group_ftrl", "GroupFtrl"),  # its documented place before there was edl.keras
)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("module", "name"), USER_IMPORTS)
def test_what_users_import_stays_where_it_is(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


def test_all_of_edl_data_is_listed() -> None:
    import edl.data

    assert {name for module, name in USER_IMPORTS if module == "edl.data"} == set(edl.data.__all__)


@pytest.mark.tensorflow
def test_the_earlier_place_of_group_ftrl_has_the_same_class() -> None:
    places = [getattr(import_module(module), name) for module, name in USER_IMPORTS if name == "GroupFtrl"]
    assert places[0] is places[1]
