"""Formats counts, bytes, shares, times and lists for people. Everything that prints them uses it.

It is not for values of job files and manifests: ``edl.jobfile.quantities`` writes those in Kubernetes' notation. A
message that names a field or constant of seconds, or a time that is compared with one, says seconds as the field does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction

_BYTE_UNITS = ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"))
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def format_number(number: float | Fraction) -> str:
    """A number with at most two decimals, and none from 100 on: ``1.5``, ``2``, ``1,234``."""
    value = float(number)
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:,.0f}"


def pluralize(count: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def join_words(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def format_bytes(count: float | Fraction) -> str:
    """Bytes in powers of 1024, as memory and Kubernetes' requests are counted: ``312 KiB``, ``6.4 GiB``."""
    value = float(count)
    for power, unit in _BYTE_UNITS:
        if abs(value) >= 1024**power:
            return f"{format_number(value / 1024**power)} {unit}"
    return f"{value:,.0f} bytes" if value.is_integer() else f"{format_number(value)} bytes"


def format_percent(share: float) -> str:
    """A share from 0 to 1 in percent. Below one percent it has a decimal; less than the whole is never 100 %."""
    number = min(100 * share, 99.0) if share < 1 else 100 * share
    return f"{number:.1f} %" if 0 < number < 1 else f"{number:.0f} %"


def format_duration(seconds: float) -> str:
    """A duration, to the second: ``8 s``, ``3:05``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_utc(unix_seconds: float) -> str:
    """A time for people on several machines, whose clocks may have different time zones."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_age(seconds: float) -> str:
    """An age in one unit, as kubectl prints it: ``45s``, ``12m``, ``3h``, ``2d``."""
    total_seconds = max(0, int(seconds))
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if total_seconds >= 2 * size or (unit == "m" and total_seconds >= size):
            return f"{total_seconds // size}{unit}"
    return f"{total_seconds}s"
