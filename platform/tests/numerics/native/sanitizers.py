"""Native code under the sanitizers for addresses, undefined behaviour and threads: any report is a failure.

python platform/tests/numerics/native/sanitizers.py           the table and reductions without Python, once
python platform/tests/numerics/native/sanitizers.py --full    with more seeds; then the tests of Python, on extensions
                                                              that were compiled so. What came out is written beside
                                                              this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
SOURCES = ROOT / "platform/edl/numerics/native"
RESULT = HERE / "sanitizers.json"
SHORT, FULL = 1, 10
"""Seeds that the programs without Python are run with."""
PROGRAMS = {"table_program": "the table without Python, seeds", "ring_program": "reductions without Python, seeds"}


@dataclass(frozen=True)
class SanitizerBuild:
    """One way to compile.

    Attributes:
        flags: of ``-fsanitize``.
        library: that must be loaded before Python, which is not compiled so.
        options: the environment that makes reports fatal and leaves Python's own memory alone.
        tests: pytest's arguments beside the marker: all, or those in which threads meet.
    """

    flags: str
    library: str
    options: dict[str, str]
    tests: tuple[str, ...] = ()

    @property
    def build(self) -> Path:
        """Where it is compiled."""
        return ROOT / "build" / f"extensions-{self.flags.partition(',')[0]}"

    def program(self, name: str) -> Path:
        """One of ``PROGRAMS``."""
        return self.build / name


SANITIZERS = (
    SanitizerBuild(
        "address,undefined",
        "libasan.so",
        {
            # an array of absurd size is a MemoryError, as it is without the sanitizer
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    ),
    SanitizerBuild(
        "thread",
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1"},
        ("-k", "at_once or beside or threads or collective"),
    ),
)


@dataclass(frozen=True)
class SanitizerRun:
    """One run without a report: of what, with how many seeds or tests, and how long it took."""

    sanitizer: str
    what: str
    count: int
    seconds: float


@dataclass(frozen=True)
class SanitizerReport:
    """What the last full run was made of.

    Attributes:
        sources: digest of what was compiled.
        compiler: its first line about itself.
        processor: architecture; the tests take every instruction set that it has.
        runs: in their order; all of them passed, or there would be no result.
    """

    sources: str
    compiler: str
    processor: str
    runs: list[SanitizerRun] = field(default_factory=list)


def compiled(sanitizer: SanitizerBuild, *, extension: bool) -> bool:
    """Configure and build, which costs a second if all is up to date; False where there is no compiler for it."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = [f"-DEDL_SANITIZE={sanitizer.flags}", f"-DEDL_EXTENSION={'ON' if extension else 'OFF'}"]
    # Several files are compiled as one: headers are most of the work. Five, because slab.cpp and table.cpp have
    # constants of one name.
    options += ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=5"]
    here = [f"-DPython_EXECUTABLE={sys.executable}", "--log-level=NOTICE"]
    output = _run(
        "cmake", "-G", "Ninja", "-S", SOURCES, "-B", sanitizer.build, *options, *here, environment=environment
    )
    print(f"Compiling with -fsanitize={sanitizer.flags}:", flush=True)
    done = subprocess.run(["cmake", "--build", sanitizer.build], env=environment)  # shows its progress
    if done.returncode:
        raise SystemExit(done.returncode)
    are_built = all(sanitizer.program(name).exists() for name in PROGRAMS)
    if not are_built:
        print(output)
    return are_built


def program(sanitizer: SanitizerBuild, name: str, seeds: int) -> SanitizerRun:
    """Native code without Python."""
    began = time.monotonic()
    _run(sanitizer.program(name), seeds, environment={**os.environ, **sanitizer.options})
    return SanitizerRun(sanitizer.flags, PROGRAMS[name], seeds, round(time.monotonic() - began, 1))


def tests(sanitizer: SanitizerBuild) -> SanitizerRun:
    """The tests of Python that are marked ``native``."""
    compiler = _compiler(sanitizer)
    preload = [_printed(compiler, f"-print-file-name={name}") for name in (sanitizer.library, "libstdc++.so.6")]
    environment = {
        **os.environ,
        **sanitizer.options,
        "LD_PRELOAD": " ".join(preload),
        "PYTHONPATH": str(HERE),
        "EDL_INSTRUMENTED": str(sanitizer.build),
    }
    began = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "instrumented",
        "-m",
        "native",
        "--timeout=1800",
        "--capture=sys",  # a report goes to the file of stderr before the process ends: pytest would take it along
        *sanitizer.tests,
    ]
    folders = [ROOT / "platform/tests" / folder for folder in ("numerics", "collective")]
    output = _run(*words, *folders, environment=environment)
    passed = re.search(r"(\d+) passed", output)
    if passed is None:
        raise SystemExit(f"no test ran under {sanitizer.flags}:\n{output}")
    return SanitizerRun(sanitizer.flags, "tests of Python", int(passed[1]), round(time.monotonic() - began, 1))


def runs(*, full: bool) -> Iterator[SanitizerRun]:
    """All of them, one after the other."""
    for sanitizer in SANITIZERS:
        if not compiled(sanitizer, extension=full):
            return
        for name in PROGRAMS:
            yield program(sanitizer, name, FULL if full else SHORT)
        if full:
            yield tests(sanitizer)


def digest() -> str:
    """Of everything that is compiled, names and contents."""
    programs = [HERE / f"{name}.cpp" for name in PROGRAMS]
    files = sorted(path for path in (*SOURCES.iterdir(), *programs) if path.is_file())
    return hashlib.sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)).hexdigest()


def main() -> None:
    """Run them; the first report ends it with its text and exit code 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="more seeds and the tests of Python; writes the result")
    full = parser.parse_args().full
    sources, done = digest(), []
    for run in runs(full=full):
        print(f"{run.sanitizer}: {run.what}: {run.count} without a report, {run.seconds:.0f} s", flush=True)
        done.append(run)
    if not done:
        print("SKIPPED: nothing was run under the sanitizers")
    elif full:
        compiler = _printed(_compiler(SANITIZERS[0]), "--version").partition("\n")[0]
        result = SanitizerReport(sources, compiler, platform.machine(), done)
        RESULT.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")


def _compiler(sanitizer: SanitizerBuild) -> str:
    cache = (sanitizer.build / "CMakeCache.txt").read_text(encoding="utf-8")
    match = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache, re.MULTILINE)
    assert match
    return match[1]


def _printed(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _run(*words: object, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [str(w) for w in words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(str(w) for w in words)} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
