"""What a process prints at each level, and what other handlers get."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.logging_levels import restored_logging

from edl.jobfile.log_level import set_printed_level


class Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def printing() -> Iterator[Handler]:
    root, handler = logging.getLogger(), Handler()
    before, handlers = root.level, root.handlers[:]
    root.handlers[:] = [handler]
    yield handler
    root.handlers[:] = handlers
    root.setLevel(before)


@pytest.mark.parametrize(
    ("level", "printed"),
    [("debug", "dime"), ("info", "ime"), ("warning", "me"), ("error", "e")],
)
def test_the_level_is_that_of_what_is_printed(printing: Handler, level: str, printed: str) -> None:
    set_printed_level(level)
    log, collector = logging.getLogger("edl.of_this_test"), Handler()
    log.addHandler(collector)
    try:
        for number, letter in ((10, "d"), (20, "i"), (30, "m"), (40, "e")):
            log.log(number, letter)
    finally:
        log.removeHandler(collector)
    assert "".join(printing.messages) == printed
    assert set("me") <= set(collector.messages), "warnings reach the master at any level"


def test_what_a_test_sets_for_all_handlers_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """Else a test that reads the log fails in whichever process a job that prints errors alone has run before."""
    with restored_logging([caplog.handler]):
        set_printed_level("error")
        caplog.handler.addFilter(lambda record: False)
        logging.getLogger("edl.of_this_test").warning("not captured")
    logging.getLogger("edl.of_this_test").warning("captured")
    assert caplog.messages == ["captured"]
