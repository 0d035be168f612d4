"""A role's identity: all of it or a clear error, and the token in no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.transport.process_identity import REQUIRED_VARIABLES, ProcessIdentity


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("abc123\n")
    values = ["/runs/one", "worker", "3", "worker-3-x", str(token), "/tmp/edl", "unix:/tmp/edl/master"]
    return dict(zip(REQUIRED_VARIABLES, values, strict=True))


def test_everything_is_read(environment: dict[str, str]) -> None:
    identity = ProcessIdentity.from_environment(environment)
    assert identity == ProcessIdentity(
        run_dir=Path("/runs/one"),
        role=Role.WORKER,
        index=3,
        uid="worker-3-x",
        token="abc123",
        runtime_dir=Path("/tmp/edl"),
        master_address="unix:/tmp/edl/master",
    )


def test_the_process_environment_is_the_default(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ProcessIdentity.from_environment() == ProcessIdentity.from_environment(environment)


def test_the_token_is_not_shown(environment: dict[str, str]) -> None:
    assert "abc123" not in repr(ProcessIdentity.from_environment(environment))


def test_all_missing_variables_are_named_at_once(environment: dict[str, str]) -> None:
    del environment["EDL_UID"]
    environment["EDL_RUN_DIR"] = ""
    with pytest.raises(BadInputError, match="EDL_RUN_DIR, EDL_UID"):
        ProcessIdentity.from_environment(environment)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("EDL_ROLE", "boss", "'boss', not one of"), ("EDL_INDEX", "-1", "'-1', not a number")],
)
def test_values_that_mean_nothing(environment: dict[str, str], name: str, value: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        ProcessIdentity.from_environment(environment | {name: value})


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", b"a\x00b"])
def test_a_file_without_a_token(environment: dict[str, str], content: bytes) -> None:
    Path(environment["EDL_TOKEN_FILE"]).write_bytes(content)
    with pytest.raises(BadInputError, match="token") as error:
        ProcessIdentity.from_environment(environment)
    assert "Secret" in str(error.value.hint)


def test_no_token_file(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read") as error:
        ProcessIdentity.from_environment(environment | {"EDL_TOKEN_FILE": str(tmp_path / "none")})
    assert error.value.where == str(tmp_path / "none")
