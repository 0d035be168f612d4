"""The environment of the jobs of statements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl.jobfile.database_address import CREDENTIAL_VARIABLES
from edl.sql_jobs.edl_process import run_edl


@pytest.mark.parametrize("needs_database", [True, False])
def test_only_a_job_that_reads_the_database_gets_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, needs_database: bool
) -> None:
    for name in (*CREDENTIAL_VARIABLES, "OTHER"):
        monkeypatch.setenv(name, "secret")
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, os\nprint(json.dumps(dict(os.environ)))\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    given = run_edl("run", tmp_path, needs_database=needs_database)
    assert given["OTHER"] == "secret"
    assert set(given) & CREDENTIAL_VARIABLES == (CREDENTIAL_VARIABLES if needs_database else set())
