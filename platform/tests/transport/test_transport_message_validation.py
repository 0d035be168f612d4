"""Every field of every message with what it may not hold; fields are found by descriptor, new ones too."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from transport.malformed_messages import DOCUMENTS, MESSAGES, bad_values, messages_with

from edl.transport import edl_pb2 as pb
from edl.transport.message_validation import check_message, parse_message
from edl.transport.peer_errors import PeerRefusedError


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.DESCRIPTOR.name)
def test_a_message_passes_whole_or_is_refused_with_the_field_named(message: type[Message]) -> None:
    assert parse_message(message, b"") == message()
    for path, field, value, sent in messages_with(message):
        passed, refused = _parsed(message, sent.SerializeToString())
        if refused is None:
            assert passed == sent or math.isnan(value)
            assert not _always_wrong(field, value), f"{path} = {value!r}"
        else:
            assert refused.kind == "bad"
            assert field.name in refused.message, path


def _parsed(message: type[Message], data: bytes) -> tuple[Message | None, PeerRefusedError | None]:
    try:
        return parse_message(message, data), None
    except PeerRefusedError as refused:
        return None, refused


def _always_wrong(field: FieldDescriptor, value: Any) -> bool:
    """What no field may hold, but those that say so."""
    if isinstance(value, float):
        return not math.isfinite(value) and field.name != "loss_sum"
    if isinstance(value, int) and not isinstance(value, bool):
        return value == -(2**63) and field.name != "seed"
    return False


def test_text_that_is_no_utf8_is_refused() -> None:
    member = pb.Member(uid="x" * 3).SerializeToString().replace(b"xxx", b"\xed\xa0\x80")
    with pytest.raises(PeerRefusedError, match="Member"):
        parse_message(pb.Member, member)


def test_every_kind_of_field_has_a_rule_and_horrors() -> None:
    fields = [field for message in MESSAGES for field in message.DESCRIPTOR.fields if field.message_type is None]
    assert len(fields) > 100
    assert all(list(bad_values(field)) for field in fields)


def test_every_field_of_bytes_has_a_document_to_take_apart() -> None:
    fields = {field.full_name: field for message in MESSAGES for field in message.DESCRIPTOR.fields}
    assert {name for name, field in fields.items() if field.type == FieldDescriptor.TYPE_BYTES} <= set(DOCUMENTS)
    assert set(DOCUMENTS) <= set(fields)


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**62, 2**63 - 1])
def test_the_seed_of_a_table_is_any_64_bits(seed: int) -> None:
    declared = pb.Declare(tables=[pb.Table(name="rows", rows=4, dim=2, seed=seed)])
    assert parse_message(pb.Declare, declared.SerializeToString()) == declared


def test_a_field_far_inside_is_named() -> None:
    request = pb.RegisterRequest(figures=pb.PsFigures(tables=[pb.TableUse(), pb.TableUse(rows=-1)]))
    with pytest.raises(PeerRefusedError, match=r"RegisterRequest\.figures\.tables\[1\]\.rows: -1 is not from 0"):
        check_message(request)


def test_more_tables_than_are_told_of_are_refused() -> None:
    with pytest.raises(PeerRefusedError, match="257 elements"):
        check_message(pb.PsFigures(tables=[pb.TableUse()] * 257))


@pytest.mark.parametrize(
    "whole",
    [
        lambda text: pb.RegisterRequest(member=pb.Member(uid=text)),
        lambda text: pb.RegisterRequest(control_address=text),
        lambda text: pb.RegisterReply(placement=pb.Placement(ps=[pb.PsAddress(bulk_address=text)])),
    ],
)
@pytest.mark.parametrize("text", ["worker\x1b[31m", "worker\n", "worker\x9b31m", "w" * 4097])
def test_names_and_addresses_have_no_control_characters_and_an_end(whole: Any, text: str) -> None:
    with pytest.raises(PeerRefusedError):
        check_message(whole(text))
    check_message(whole("größer/worker-0 (1)"))


def test_a_file_may_be_called_anything_that_a_file_system_takes() -> None:
    check_message(pb.Task(source="two\nlines\t.csv"))
    for name in ("half\0", "x" * 4097):
        with pytest.raises(PeerRefusedError):
            check_message(pb.Task(source=name))


def test_words_for_people_may_have_lines() -> None:
    check_message(pb.FailRequest(message="first\nsecond", detail="x" * 10_000))
    warning = pb.WorkerWarning(topic="cannot describe\n%s", text="cannot describe\n" + "x" * 10_000)
    check_message(pb.ProgressRequest(warnings=[warning]))
    check_message(pb.WrittenShard(error="the disk is full\n  Free some space there."))
    check_message(pb.UnreadableCheckpoint(cut=1, error="wrong checksum\n  Use another one."))
