"""As many workers of one machine as it has cores import TensorFlow at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edl.worker.worker_process import ImportSlot, acquire_import_slot

HOLD = """
import sys
from pathlib import Path
from edl.worker.worker_process import acquire_import_slot
turn = acquire_import_slot(Path(sys.argv[1]), 1)
print(turn.is_held, flush=True)
sys.stdin.read()
"""


def test_the_next_worker_waits_for_the_end_of_a_turn(tmp_path: Path) -> None:
    first, second = acquire_import_slot(tmp_path, 2), acquire_import_slot(tmp_path, 2)
    assert first.is_held
    assert second.is_held
    third: list[ImportSlot] = []
    waiting = threading.Thread(target=lambda: third.append(acquire_import_slot(tmp_path, 2, timeout_seconds=60)))
    waiting.start()
    assert not third, "there are two cores"
    second.release()
    waiting.join(60)
    assert [turn.is_held for turn in third] == [True]


def test_nobody_waits_forever_for_a_worker_that_was_stopped(tmp_path: Path) -> None:
    first = acquire_import_slot(tmp_path, 1)
    second = acquire_import_slot(tmp_path, 1, timeout_seconds=0.1)
    assert first.is_held
    assert not second.is_held
    second.release()
    assert not acquire_import_slot(tmp_path, 1, timeout_seconds=0).is_held, "the first one still has it"


@pytest.mark.parametrize("kill", [True, False])
def test_a_turn_ends_with_its_process(tmp_path: Path, kill: bool) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder:
        assert holder.stdout.readline() == "True\n"
        assert not acquire_import_slot(tmp_path, 1, timeout_seconds=0).is_held
        if kill:
            holder.kill()
        else:
            holder.stdin.close()
        holder.wait(30)
        assert acquire_import_slot(tmp_path, 1, timeout_seconds=0).is_held
