"""Writes the reference pages of the documentation: ``python docs/generate``. A test fails when they are stale.

The pages come from what the program itself checks and answers with - the JobSpec's sections and their JSON Schema, the
commands and their help - and so they cannot say anything else. By hand are only the examples, which a test loads, and
the text around the tables of the migration page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import commands_page
import elasticdl_page
import jobspec_page
import migration_tables

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "jobspec.md": jobspec_page.page,
    "cli.md": commands_page.page,
    "elasticdl.md": elasticdl_page.page,
}
"""What each page is made by."""


def main() -> None:
    """Write all pages."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        print(f"docs/reference/{name}")
    migrating = migration_tables.PAGE
    migrating.write_text(migration_tables.page(migrating.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"docs/{migrating.name}")


if __name__ == "__main__":
    main()
