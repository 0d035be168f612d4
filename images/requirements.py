"""Print what ``pyproject.toml`` depends on, one requirement a line, for the layer that changes seldom.

    python images/requirements.py [--extra NAME] [--tensorflow REQUIREMENT]

``--tensorflow`` replaces every requirement of TensorFlow, with the versions that pyproject.toml allows:
``tensorflow-cpu`` or ``tensorflow[and-cuda]``.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

TENSORFLOW = re.compile(r"tensorflow(-cpu)?(?P<versions>[^;]*)")


def requirements(project: dict[str, object], extras: Sequence[str], tensorflow: str | None) -> Iterator[str]:
    """The requirements of a ``[project]`` table and of some of its extras, in order, each once.

    Args:
        project: the table.
        extras: names of optional dependencies to include.
        tensorflow: the distribution of TensorFlow to ask for instead of those named, its versions kept.
    """
    dependencies, optional = project["dependencies"], project.get("optional-dependencies", {})
    assert isinstance(dependencies, list)
    assert isinstance(optional, dict)
    wanted = [*dependencies, *(line for extra in extras for line in optional[extra])]
    yield from dict.fromkeys(_chosen(line, tensorflow) for line in wanted)


def _chosen(line: str, tensorflow: str | None) -> str:
    match = TENSORFLOW.match(line)
    return f"{tensorflow}{match['versions'].strip()}" if tensorflow and match else line


def main() -> None:
    """Print the requirements of the ``pyproject.toml`` in the working directory."""
    parser = argparse.ArgumentParser(description="Print what pyproject.toml depends on.")
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--tensorflow")
    options = parser.parse_args()
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(requirements(project, options.extra, options.tensorflow)))


if __name__ == "__main__":
    main()
