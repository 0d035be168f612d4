"""Warnings about the user's model and data are passed on once, and only these."""

from __future__ import annotations

import logging

from edl.worker.warning_collector import MAX_WARNINGS_OF_TOPIC, WarningCollector, is_not_collected

KERAS = logging.getLogger("edl.keras.model_export")


def test_each_text_is_passed_on_once_and_few_of_a_topic() -> None:
    warnings: list[tuple[str, str]] = []
    with WarningCollector(lambda topic, text: warnings.append((topic, text))):
        for _ in range(2):
            KERAS.warning("no file for %s", "a")
        for at in range(9):
            logging.getLogger("edl.worker.not_finite").warning("loss %d", at)
    assert warnings == [("no file for %s", "no file for a"), *(("loss %d", f"loss {at}") for at in range(3))]
    assert MAX_WARNINGS_OF_TOPIC == 3


def test_what_is_for_admins_or_no_warning_stays_in_the_log() -> None:
    warnings: list[str] = []
    with WarningCollector(lambda topic, text: warnings.append(text)):
        logging.getLogger("edl.transport.bulk_server").warning("a client is refused")
        KERAS.info("built")
    KERAS.warning("after the end")
    assert not warnings


def test_a_handler_can_leave_out_what_was_passed_on() -> None:
    shown: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(is_not_collected)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with WarningCollector(lambda topic, text: None):
            KERAS.warning("once")
            KERAS.warning("once")
            logging.getLogger("edl.data").warning("another")
    finally:
        root.removeHandler(handler)
    assert shown == ["once", "another"], "a repetition is in the log alone"
