"""The parts of the benchmarks of parameter servers that decide: noise, ratios; peers that take turns."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"

PEER = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from peer import serve_questions
serve_questions(lambda question: {{"twice": 2 * question["number"]}}, name="doubles")
"""


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    # The zoo has a deepfm too. A test before may have imported it, or have left the finder that lets a job's zoo win.
    monkeypatch.delitem(sys.modules, "deepfm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if type(finder).__name__ != "_ZooFinder"])


def test_noise_is_three_standard_errors() -> None:
    from convergence import noise_of_difference

    assert noise_of_difference([0.1], [0.1, 0.2]) is None
    # variance 0.01 each, over two values each: the standard error of the difference is 0.1
    assert noise_of_difference([0.0, 0.2**0.5 / 10**0.5], [0.0, 0.2**0.5 / 10**0.5]) == pytest.approx(0.3)


def test_only_workers_whose_steps_are_in_the_journal_took_part() -> None:
    from convergence import _workers_with_steps

    entries = [
        {"kind": "leased", "lease": 1, "worker": "a"},
        {"kind": "leased", "lease": 2, "worker": "b"},
        {"kind": "progress", "lease": 1},
        {"kind": "leased", "lease": 3, "worker": "c"},
        {"kind": "done", "lease": 3},
    ]
    assert _workers_with_steps(entries) == {"a", "c"}


def test_ratios_are_of_one_round_each() -> None:
    """The machine was half as fast in the second round, for both sides: the ratio does not see it."""
    from deepfm import figures

    quick = {"edl": 90.0, "limit": 100.0, "limit_in_memory": 120.0, "strategy": 45.0, "fit": 30.0}
    quick["strategy_by_step"] = 40.0
    slow = {name: rate / 2 for name, rate in quick.items()}
    by_measure = {figure.measure: figure for figure in figures({512: [quick, slow, quick]})}
    ratios = [figure for figure in by_measure.values() if figure.limit is not None]
    assert [(figure.measured, figure.limit, figure.aim, figure.is_met) for figure in ratios] == [
        (pytest.approx(0.9), 0.80, 0.88, True),
        (pytest.approx(2.0), 1.6, 2.0, True),
        (pytest.approx(3.0), 2.0, 4.0, True),
    ]


def test_each_thread_of_a_job_has_a_part() -> None:
    from step_cost import COMPUTING, FEEDING, RUNNING, SERVING, TURNING, part_of

    assert part_of("edl.worker", "tf_Compute", first=False) == COMPUTING
    assert part_of("edl.worker", "python", first=True) == TURNING
    assert part_of("edl.worker", "python", first=False) == FEEDING
    assert part_of("edl.ps", "python", first=True) == SERVING
    assert part_of("edl.master", "python", first=True) == part_of("", "edl", first=True) == RUNNING


def test_a_peer_answers_and_ends(tmp_path: Path) -> None:
    from peer import PeerScript, ask_all

    script = tmp_path / "doubles.py"
    script.write_text(PEER)
    with PeerScript(str(script)) as one, PeerScript(str(script)) as other:
        assert one.ready_message == {"ready": True, "name": "doubles"}
        assert one.ask_question(number=2) == {"twice": 4}
        assert ask_all([one, other], number=3) == [{"twice": 6}] * 2
        one.send_question(number="?", more=[])
        assert one.receive_answer() == {"twice": "??"}
        one.send_question(wrong=1)
        with pytest.raises(RuntimeError, match="KeyError: 'number'"):
            one.receive_answer()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_bare_socket_carries_what_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    from bulk_plane import LARGE, bare_calls, serve_bare

    ours, theirs = multiprocessing.Pipe()
    address = f"unix:{tmp_path}/bare" if kind == "unix" else "127.0.0.1:0"
    server = threading.Thread(target=serve_bare, args=(address, theirs))
    server.start()
    with bare_calls(ours.recv()) as call:
        for request_size, response_size in ((0, 0), (LARGE, 0), (0, LARGE), (1000, 3)):
            call(memoryview(bytes(request_size)), response_size)
    ours.send("end")
    server.join(30)
    assert not server.is_alive()
