"""A native extension of other sources is refused with a hint, before a call of it fails."""

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from edl.api.errors import BadInputError
from edl.numerics.extension_interface import check_extension_interface

EXTENSIONS = ("edl.numerics._native", "edl.numerics._distinct", "edl.data._records", "edl.collective._ring")


@pytest.mark.native
@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_stub_of_an_extension_declares_what_was_compiled(name: str) -> None:
    check_extension_interface(importlib.import_module(name))


def copied_with_stub(name: str, folder: Path, change: tuple[str, str]) -> ModuleType:
    """The extension as it would look beside a newer stub."""
    extension = importlib.import_module(name)
    assert extension.__file__ is not None
    short = name.rpartition(".")[2]
    stub = (Path(extension.__file__).parent / f"{short}.pyi").read_text()
    assert change[0] in stub
    (folder / f"{short}.pyi").write_text(stub.replace(*change))
    shutil.copy(extension.__file__, folder)
    copy = ModuleType(name)
    vars(copy).update({**vars(extension), "__file__": str(folder / Path(extension.__file__).name)})
    return copy


@pytest.mark.native
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("first_within: float,", "first_within: float,\n        later: int,"),
            r"Ring\.__init__ takes .*first_within\)",
        ),
        (("def close(self)", "def shut(self)"), r"has no Ring\.shut"),
        (("element: int, isa: str", "kind: int, isa: str"), r"add_into takes \(into, other, element, isa\)"),
        (("CHUNK_BYTES: int", "PIECE_BYTES: int"), r"has no .*PIECE_BYTES"),
    ],
)
def test_an_extension_of_other_sources_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(BadInputError, match=said) as refused:
        check_extension_interface(copied_with_stub("edl.collective._ring", tmp_path, change))
    assert "make native" in str(refused.value)


@pytest.mark.native
def test_a_stale_ring_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extension a round reduces in NumPy; with a stale one it must not, or nobody would know."""
    import edl.collective
    from edl.collective.communicator import _find_ring

    stale = copied_with_stub("edl.collective._ring", tmp_path, ("def close(self)", "def shut(self)"))
    monkeypatch.setitem(sys.modules, "edl.collective._ring", stale)
    monkeypatch.setattr(edl.collective, "_ring", stale)
    monkeypatch.delitem(sys.modules, "edl.collective.native_ring", raising=False)
    with pytest.raises(BadInputError, match="other sources"):
        _find_ring(None)
