"""Text of pods, models and file names reaches no terminal with its control characters, whatever shows it."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cli.cli_harness import SUMMARY, CliHarness, LocalRunHarness, cli_with_job, command
from hypothesis import given
from hypothesis import strategies as st
from support.job_objects import PUBLISHED, put_job, put_pod

from edl.api.cluster_port import Role
from edl.api.run_events import EvaluationEnded, WarningRaised
from edl.api.status import Status
from edl.cli import app
from edl.reporting.rich_console import make_console
from edl.reporting.terminal_text import raw_stream, sanitize_standard_streams, strip_control_characters, to_single_line
from edl.reporting.text_table import SlowResponseNotice, StatusLine
from edl.storage.run_directory import RunDirectory
from edl.worker.local_strategy.local_report import LocalReport

CLI = Path(app.__file__).parent
HOSTILE = "evil\x1b]0;title\x07\x1b[2J\x1b[1;31mred\x9b1A\x1bPq\x1b\\\u202etxt\x7f\x08\rback"
SHOWN = "evilred1Atxt back"
BREAKING, FORGED = "accuracy\n12:00:00 forged\r\n more", "12:00:00 forged"
BAD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


# ------------------------------------------------------------------------------------------------ the border


def test_sequences_go_and_words_stay() -> None:
    assert strip_control_characters(HOSTILE) == SHOWN
    assert strip_control_characters("a\tb\r\nc\n") == "a\tb\nc\n"
    assert strip_control_characters("é 漢字 █░ …") == "é 漢字 █░ …"
    assert strip_control_characters("half \ud800 a character") == "half \ufffd a character"


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(to_single_line(text).splitlines()) <= 1
    assert to_single_line(f"  {text}.") == to_single_line(to_single_line(f"  {text}."))


@given(st.text())
def test_what_is_printable_holds_no_control_character_and_stays_as_it_is(text: str) -> None:
    shown = strip_control_characters(text)
    assert not BAD.search(shown)
    shown.encode()
    assert strip_control_characters(shown) == shown


def test_print_goes_through_the_border_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with sanitize_standard_streams():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines([HOSTILE])
        assert raw_stream(sys.stdout) is before
    assert sys.stdout is before
    assert capsys.readouterr() == (f"{SHOWN}\n{SHOWN}", f"{SHOWN}\n")


def test_a_styled_console_keeps_its_own_colours_only() -> None:
    out = io.StringIO()
    on = make_console(out)
    on._force_terminal = True
    on._color_system = None
    on.print(f"[bold]{HOSTILE.replace('[', chr(92) + '[')}[/bold]")
    assert not BAD.search(out.getvalue())


def test_what_is_rewritten_in_place_holds_no_other_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with StatusLine(out) as ticker:
        ticker.show_text(HOSTILE)
    monkeypatch.setattr(sys, "stderr", out)
    SlowResponseNotice()._show(HOSTILE)
    assert not BAD.search(out.getvalue().replace("\r\x1b[K", ""))


# ------------------------------------------------------------------------------------------------ every renderer


def test_nothing_writes_past_the_border() -> None:
    """Streams below the border are for these only; each makes its text printable (the tests above and below)."""
    below = {"styled.py", "cluster/notice.py", "cluster/ticker.py"}
    for path in CLI.rglob("*.py"):
        name = path.relative_to(CLI).as_posix()
        if name.startswith("templates/"):
            continue
        text = path.read_text(encoding="utf-8")
        if "unguarded(" in text or "\\x1b" in text:
            assert name in below, name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "Console", f"{name}:{node.lineno}: use edl.reporting.rich_console.make_console"
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("__stdout__", "__stderr__"), f"{name}:{node.lineno}"
                if node.attr == "buffer" and isinstance(node.value, ast.Attribute):
                    assert node.value.attr not in ("stdout", "stderr"), f"{name}:{node.lineno}"


@pytest.mark.parametrize("name", app.COMMANDS)
def test_no_command_repeats_what_it_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for given_words in (
        [HOSTILE],
        ["--" + HOSTILE],
        [HOSTILE, HOSTILE, HOSTILE],
        ["ls", HOSTILE],
        ["--namespace", HOSTILE],
    ):
        with pytest.raises(SystemExit):
            app.main([name, *given_words])
        out, errors = capsys.readouterr()
        assert not BAD.search(out + errors), (given_words, out + errors)


def hostile_run(local_run: LocalRunHarness, hostile: str = HOSTILE) -> None:
    """What every part of a run can say in somebody else's words."""
    local_run.script(
        ["status", {"job": "digits", "phase": "Training", "records_total": 30, "records_done": 12, "step": 3,
                    "metrics": {hostile: 0.5}, "refusals": {"worker-1": hostile},
                    "workers": [{"index": 0, "pid": 7, "state": hostile, "node": hostile, "reason": hostile}]}],
        ["event", {"event": "warning", "message": hostile}],
        ["event", {"event": "evaluation_ended", "step": 3, "metrics": {hostile: 0.5}}],
        ["event", {"event": "records_returned", "epoch": 0, "source": hostile, "start": 0, "end": 4,
                   "worker": hostile, "reason": hostile}],
        ["event", {"event": "role_ended", "role": "worker", "index": 0, "pid": 7, "reason": hostile, "exit_code": 1}],
        ["event", {"event": "exported", "path": hostile}],
        ["text", ["failure.txt", hostile]],
        ["text", ["failure.json", json.dumps({"kind": "input", "reason": hostile, "detail": hostile})]],
        ["event", {"event": "job_ended", "phase": "Failed", "reason": hostile,
                   "summary": {**SUMMARY, "metrics": {hostile: 0.5}, "export": hostile}}],
    )  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["lines", "json"])
def test_edl_run_in_a_pipe(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    hostile_run(local_run)
    assert local_run.edl("run", "job.yaml", *options) == 2
    out, errors = capsys.readouterr()
    assert not BAD.search(out + errors)
    assert SHOWN in errors
    assert SHOWN in out or "\\u001b" in out


def on_a_terminal(line: list[str]) -> str:
    """What a command writes to a terminal, without the sequences that Rich draws with."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="200", NO_COLOR="1")
        os.execv(line[0], line)
    shown = bytearray()
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            shown.extend(data)
    os.waitpid(pid, 0)
    os.close(terminal)
    return re.sub(r"\x1b\[\??[0-9;]*[AKhlm]|\x1b\[2K|\r", "", shown.decode())


def test_edl_run_on_a_terminal(local_run: LocalRunHarness) -> None:
    hostile_run(local_run)
    drawn = on_a_terminal(command("run", "job.yaml"))
    assert SHOWN in drawn
    assert "title" not in drawn
    assert not BAD.search(drawn)


def test_a_name_breaks_no_line_of_edl_run(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    """What was wrong may have several lines: it comes on standard error, and is the user's own traceback."""
    hostile_run(local_run, BREAKING)
    assert local_run.edl("run", "job.yaml") == 2
    out = capsys.readouterr().out
    assert "accuracy 12:00:00 forged more 0.5" in out
    assert not [line for line in out.splitlines() if line.startswith(FORGED)]


def test_a_name_breaks_no_line_on_a_terminal(local_run: LocalRunHarness) -> None:
    hostile_run(local_run, BREAKING)
    drawn = on_a_terminal(command("run", "job.yaml"))
    assert "accuracy 12:00:00 forged more 0.5" in drawn
    assert sum(line.startswith(FORGED) for line in drawn.splitlines()) <= 2, "the reason and the detail, once each"


@pytest.mark.parametrize("words", [["status", "mnist"], ["list"], ["events", "mnist"], ["status", "mnist", "-w"]])
def test_a_name_breaks_no_line_about_a_job_on_a_cluster(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = cli_with_job(monkeypatch, capsys, with_job=False)
    put_hostile(cli, BREAKING, phase="Done" if "-w" in words else "Stalled")
    cli.edl(*words)
    assert "accuracy 12:00:00 forged more" in cli.out
    assert not [line for line in cli.out.splitlines() if line.startswith(FORGED)]


def put_hostile(cli: CliHarness, hostile: str, phase: str = "Training") -> None:
    """A job, its pods and its events, which say this wherever they can."""
    assert PUBLISHED.status is not None
    workers = tuple(replace(each, reason=hostile, node=hostile) for each in PUBLISHED.status.workers)
    refusals = {"worker-9": hostile}
    status = replace(
        PUBLISHED.status, phase=phase, reason=hostile, workers=workers, metrics={hostile: 0.5}, refusals=refusals
    )
    put_job(
        cli.cluster,
        published=replace(
            PUBLISHED, status=status, events=(*PUBLISHED.events, WarningRaised(hostile, time=PUBLISHED.events[-1].time))
        ),
    )
    put_pod(cli.cluster, Role.MASTER)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    """A cluster whose job, pods and events say hostile things."""
    cli = cli_with_job(monkeypatch, capsys, with_job=False)
    put_hostile(cli, HOSTILE)
    cli.cluster.logged = {"edl-mnist-master-abcde": [HOSTILE]}
    return cli


@pytest.mark.parametrize(
    "words", [["status", "mnist"], ["list"], ["events", "mnist"], ["logs", "mnist"], ["why", "mnist"], ["top", "mnist"]]
)
def test_commands_about_a_job_on_a_cluster(cli: CliHarness, words: list[str]) -> None:
    cli.edl(*words)
    assert cli.out
    assert not BAD.search(cli.out)
    if words[0] in ("status", "events", "logs"):
        assert SHOWN in cli.out


def test_strategy_local_in_this_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path)
    status = Status("digits", "r1", str(tmp_path), "Training", 1.0, metrics={HOSTILE: 0.5})
    report = LocalReport(run, status, as_json=False)
    report.event(WarningRaised(HOSTILE, time=1.0))
    report.event(EvaluationEnded(3, {HOSTILE: 0.5}, time=1.0))
    report.ended("Failed", HOSTILE, 1, export=HOSTILE)
    out = capsys.readouterr().out
    assert SHOWN in out
    assert not BAD.search(out)


def make(folder: Path) -> RunDirectory:
    (folder / "logs").mkdir()
    return RunDirectory(folder)
