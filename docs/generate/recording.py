"""Records the live view of ``make demo`` as an animated SVG: ``python docs/generate/recording.py``.

The job of the demo runs in a pseudo-terminal, with a worker killed half-way. What it writes is replayed into a small
screen, some moments of it become frames, and CSS shows one after another. Nothing is edited, except that the time is
shorter and that paths are relative to the repository.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "recording.svg"
COMMAND = ("edl", "inject", "worker:KILL@50%", "--", "edl", "run", "model_zoo/mnist/job.yaml", "--workers", "2")
COLUMNS, LINES = 96, 27
MAX_FRAMES = 22
PLAY_SECONDS, LAST_FRAME_SECONDS = 22.0, 6.0
"""How long the recording plays, and how long its end stays on the screen before it starts again."""
_CONTROL = re.compile(r"\x1b\[(?P<number>[?\d;]*)(?P<letter>[A-Za-z])")


@dataclass(slots=True)
class Screen:
    """What a terminal shows after output that moves up and erases whole lines, as rich's live views do.

    Lines keep their colours as escape sequences.
    """

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0

    def feed(self, text: str) -> None:
        """Take output."""
        position = 0
        while position < len(text):
            control = _CONTROL.match(text, position)
            if control is not None:
                self._obey(control)
                position = control.end()
            else:
                self._put(text[position])
                position += 1

    def _obey(self, control: re.Match[str]) -> None:
        letter = control["letter"]
        if letter == "m":
            self.lines[self.row] += control[0]
        elif letter == "A":
            self.row = max(0, self.row - int(control["number"] or 1))
        elif letter == "K":
            self.lines[self.row] = ""

    def _put(self, character: str) -> None:
        if character == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        elif character != "\r":
            self.lines[self.row] += character

    def visible(self) -> list[str]:
        """The last lines, as many as the terminal has."""
        shown = self.lines[:-1] if not self.lines[-1] else self.lines
        return shown[-LINES:]


@dataclass(frozen=True, slots=True)
class Moment:
    """The screen ``seconds`` after the start."""

    seconds: float
    lines: tuple[str, ...]


def record(command: Sequence[str]) -> list[Moment]:
    """Run a command on a terminal of its own; every change of its screen.

    Raises:
        RuntimeError: it failed.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    process = subprocess.Popen(command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    screen, moments, began = Screen(), [], time.monotonic()
    for output in _read_until_closed(leader):
        screen.feed(output)
        moments.append(Moment(time.monotonic() - began, tuple(screen.visible())))
    if process.wait() != 0:
        raise RuntimeError(f"the demo ended with {process.returncode}:\n" + "\n".join(screen.visible()))
    return moments


def _read_until_closed(leader: int) -> Iterator[str]:
    """Output in whole writes: a frame of a live view is one."""
    pending = b""
    while True:
        try:
            data = os.read(leader, 1 << 16)
        except OSError:  # Linux says so when the other end is closed
            return
        if not data:
            return
        pending += data
        try:
            text, pending = pending.decode(), b""
        except UnicodeDecodeError:  # a character that is cut in two
            continue
        yield text


def choose_frames(moments: Sequence[Moment]) -> list[Moment]:
    """The first and the last, those in which a process ends or starts, and others evenly between."""
    changes = [after for before, after in pairwise(moments) if _process_events(after) != _process_events(before)]
    wanted = [moments[0], *changes[-MAX_FRAMES // 2 :], moments[-1]]
    missing = max(0, MAX_FRAMES - len(wanted))
    times = [moments[-1].seconds * number / (missing + 1) for number in range(1, missing + 1)]
    wanted += [min(moments, key=lambda one: abs(one.seconds - at)) for at in times]
    by_time = {one.seconds: one for one in wanted}
    return [by_time[seconds] for seconds in sorted(by_time)]


def _process_events(moment: Moment) -> int:
    return sum(bool(re.search(r"(ended|started) \(pid|leased again", line)) for line in moment.lines)


def frame_parts(lines: Sequence[str], number: int) -> tuple[dict[str, str], str]:
    """CSS by class, and the text elements, as rich exports them."""
    console = Console(record=True, width=COLUMNS, height=LINES, file=io.StringIO(), force_terminal=True)
    for line in (each.replace(f"{ROOT}/", "") for each in lines):
        console.print(Text.from_ansi(line, no_wrap=True, overflow="crop"))
    name = f"f{number}"
    exported = console.export_svg(code_format="{styles}\0{backgrounds}{matrix}", unique_id=name, theme=SVG_EXPORT_THEME)
    styles, _, elements = exported.partition("\0")
    rules = dict(re.findall(rf"\.({name}-r\d+) {{ (.*?) }}", styles))
    return rules, re.sub(r' clip-path="[^"]*"', "", elements)


def animate(frames: Sequence[Moment]) -> str:
    """One SVG; readers who want no motion see the frame after the kill."""
    speed = max(1.0, (frames[-1].seconds - frames[0].seconds) / PLAY_SECONDS)
    starts = [(one.seconds - frames[0].seconds) / speed for one in frames]
    length = starts[-1] + LAST_FRAME_SECONDS
    classes: dict[str, str] = {}
    groups, animations = [], []
    for number, (frame, start) in enumerate(zip(frames, starts, strict=True)):
        rules, elements = frame_parts(frame.lines, number)
        for name, rule in rules.items():
            shared = classes.setdefault(rule, f"edl-rec-{len(classes)}")
            elements = re.sub(rf'class="{name}"', f'class="{shared}"', elements)
        end = starts[number + 1] if number + 1 < len(starts) else length
        shown = f"{100 * start / length:.2f}%{{visibility:visible}}{100 * end / length:.2f}%{{visibility:hidden}}"
        animations.append(f"@keyframes edl-rec-k{number}{{0%{{visibility:hidden}}{shown}}}")
        animations.append(f".edl-rec-f{number}{{animation:edl-rec-k{number} {length:.1f}s step-end infinite}}")
        groups.append(f'<g class="edl-rec-frame edl-rec-f{number}">{elements}</g>')
    still = next((n for n, one in enumerate(frames) if any("SIGKILL" in line for line in one.lines)), len(frames) - 1)
    colours = "".join(f".{name}{{{rule}}}" for rule, name in classes.items())
    width, height = round(COLUMNS * 12.2) + 24, round(LINES * 24.4) + 60
    description = (
        "A terminal: edl run trains digits with two workers. At 50 % worker 0 is killed, its records are leased to the "
        "other worker, and worker 2 starts in its place. The job ends with all records done and none lost."
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg class="edl-recording" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>The live view of edl run while a worker is killed</title><desc>{description}</desc><style>"
        ".edl-recording text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"font-size:20px;white-space:pre}}.edl-rec-frame{{visibility:hidden}}{colours}{''.join(animations)}"
        "@media (prefers-reduced-motion:reduce){.edl-recording .edl-rec-frame{animation:none}"
        f".edl-recording .edl-rec-f{still}{{visibility:visible}}}}</style>"
        f'<rect width="{width}" height="{height}" rx="10" fill="#292929"/>'
        '<circle cx="22" cy="21" r="7" fill="#ff5f57"/><circle cx="45" cy="21" r="7" fill="#febc2e"/>'
        '<circle cx="68" cy="21" r="7" fill="#28c840"/>'
        f'<text x="90" y="28" fill="#c5c8c6">make demo, {speed:.1f} times as fast</text>'
        f'<g transform="translate(12 42)">{"".join(groups)}</g></svg>\n'
    )


def main() -> None:
    """Run the demo and write the file."""
    TARGET.write_text(animate(choose_frames(record(COMMAND))), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
