"""What a text for people must name, whatever its sentences are: fields, values, files, commands."""

from __future__ import annotations

import re


def missing_keys(text: str, *keys: str) -> list[str]:
    """Those of the keys that a text does not have, as whole words; how its lines are broken does not matter."""
    flat = " ".join(text.split())
    return [key for key in keys if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", flat) is None]
