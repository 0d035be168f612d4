"""The environment of the jobs of statements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl.api.errors import JobFailedError
from edl.jobfile.database_address import CREDENTIAL_VARIABLES
from edl.sql_jobs.edl_process import run_edl


def test_a_job_that_fails_names_its_log_and_the_command_that_explains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "job.yaml").write_text("name: returns\n", encoding="utf-8")
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"reason": "no memory"}\'\nexit 1\n', encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(JobFailedError, match="no memory") as error:
        run_edl("run", folder)
    assert error.value.hint == f"the log is {folder}/edl.log; or: cd '{folder}' && edl why returns"


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
    environment = run_edl("run", tmp_path, needs_database=needs_database)
    assert environment["OTHER"] == "secret"
    assert set(environment) & CREDENTIAL_VARIABLES == (CREDENTIAL_VARIABLES if needs_database else set())
