"""Addresses of databases in job files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.api.job_spec import DataSpec, JobSpec
from edl.api.pod_spec import VolumeSpec
from edl.cluster.kubernetes.spec_validation import find_spec_problems
from edl.jobfile.database_address import check_databases, database_file, has_password, is_database
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import find_relative_paths, resolve_local_paths


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("sqlite:///shop.db#orders", "shop.db"),
        ("sqlite:////data/shop.db", "/data/shop.db"),
        ("duckdb:///a/b.duckdb#x", "a/b.duckdb"),
        ("postgresql://host/shop", None),
        ("env://SHOP#orders", None),
    ],
)
def test_only_embedded_databases_are_files(address: str, file: str | None) -> None:
    assert is_database(address)
    assert database_file(address) == file


@pytest.mark.parametrize("path", ["shop.db", "s3://bucket/a", "https://host/a?password=x", "odps://table"])
def test_other_paths_are_no_databases(path: str) -> None:
    assert not is_database(path)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://host/db", False),
        ("postgresql://me@host:5432/db?sslmode=require&sslkey=/k", False),
        ("sqlite:////data/a:b@c.db", False),
        ("postgresql://me:x@host/db", True),
        ("postgresql://me:x/y#z@host/db", True),
        ("mysql://host/db?ssl_password=x", True),
    ],
)
def test_a_password_in_an_address_is_found(address: str, expected: bool) -> None:
    assert has_password(address) == expected


def test_a_job_with_a_password_is_refused_without_printing_it() -> None:
    spec = JobSpec(name="a", data=DataSpec(training=("postgresql://me:hunter2@host/db#t",)))
    (violation,) = check_databases(spec)
    assert violation.field_path == "data.training"
    assert "hunter2" not in f"{violation.message} {violation.hint}"


def test_the_file_of_a_database_is_resolved_as_other_paths_are() -> None:
    data = DataSpec(training=("sqlite:///shop.db#orders",), validation=("duckdb:////data/v.duckdb", "env://SHOP"))
    spec = JobSpec(name="a", data=data)
    assert [path for _, path in find_relative_paths(spec)] == ["sqlite:///shop.db#orders"]
    spec = replace(spec, volumes=(VolumeSpec(mount="/data", local="/home/me"),))
    resolved = resolve_local_paths(spec, Path("/job")).data
    assert resolved.training == ("sqlite:////job/shop.db#orders",)
    assert resolved.validation == ("duckdb:////home/me/v.duckdb", "env://SHOP")


def test_credentials_of_a_database_may_come_from_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: digits\nimage: edl/digits:1\nmodel: {definition: m.model}\ndata: {training: 'postgresql://db/shop#orders'}\n"
        "pod: {env: {EDL_DATABASE_PASSWORD: {secret: shop, key: password}, EDL_DATABASE_USER: reader}}\n"
    )
    spec = load_job_file(file, extra_rules=find_spec_problems)
    assert set(spec.pod.env) == {"EDL_DATABASE_PASSWORD", "EDL_DATABASE_USER"}
