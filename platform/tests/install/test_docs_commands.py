"""Every command in the documentation exists: subcommand, options, the files and charts that it names, their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main
from install.chart_tools import attempt, output
from support.doc_commands import DOCS, PAGES, PROGRAMS, ROOT, DocCommand, blocks, calls, copies, exported
from typer.testing import CliRunner

from edl.api.errors import EdlError
from edl.cli.app import app
from edl.jobfile.loader import load_job_file

pytestmark = pytest.mark.install

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
ZOO_JOB = ROOT / "model_zoo" / "mnist" / "job.yaml"
IMAGES = "image=edl/mnist:dev,submitter.image.repository=edl/submitter"
SAMPLES = {"WORKER_CPU": "500m"}


def commands_of(program: str) -> list[object]:
    return [
        pytest.param(block, words, id=f"{block}")
        for page in PAGES
        for block in blocks(page)
        for words in calls(block.text, SAMPLES)
        if words[0] == program
    ]


def option(words: Sequence[str], *names: str) -> list[str]:
    """The values of an option, however it is written."""
    pairs = [word.partition("=") for word in words]
    values = [value for name, equals, value in pairs if name in names and equals]
    return values + [words[i + 1] for i, word in enumerate(words[:-1]) if word in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_variables_are_set_on_the_page_that_uses_them(page: Path) -> None:
    known = exported(page) | {"HOME", "PWD"}
    for block in blocks(page):
        used = set(re.findall(r"\$\{?([A-Z]\w*)", block.text))
        assert used <= known, f"{block} uses {used - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_brackets_are_quoted(page: Path) -> None:
    """zsh, the shell of macOS, takes `teams[0]` for a pattern."""
    for block in blocks(page):
        assert not re.search(r"--set \S*\[", re.sub(r"'[^']*'|\"[^\"]*\"", "", block.text)), str(block)


# ---------------------------------------------------------------------------- edl


@pytest.mark.parametrize(("block", "words"), commands_of("edl"))
def test_edl_commands_parse(block: DocCommand, words: list[str]) -> None:
    """By the parser that answers the user; nothing is executed."""
    command: click.Command = typer.main.get_command(app)
    context: click.Context | None = None
    name, rest = words[0], words[1:]
    try:
        while True:
            context = command.make_context(name, list(rest), parent=context)
            command = context.command
            if not isinstance(command, click.Group):
                break
            name, found_command, rest = command.resolve_command(context, [*context.protected_args, *context.args])
            assert name is not None
            assert found_command is not None
            command = found_command
    except click.exceptions.Exit:  # --help, --version
        return
    except click.UsageError as error:
        pytest.fail(f"{block}: {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize(("block", "words"), commands_of("edl"))
def test_fields_that_edl_commands_set_exist(block: DocCommand, words: list[str]) -> None:
    """Checked as the command does, on the job file that is named, or on that of the zoo."""
    named = next((ROOT / word for word in words if word.endswith(".yaml") and (ROOT / word).exists()), ZOO_JOB)
    settings = option(words, "--set")
    try:
        load_job_file(named, settings)
    except EdlError as error:
        pytest.fail(f"{block}: {error}")


# --------------------------------------------------------------------------- helm


@cache
def help_text(*command: str) -> str:
    """What a program's help says of a command."""
    return output(command[0], *command[1:], "--help")


@cache
def kubectl_options() -> str:
    """What the help of each command of kubectl leaves out, because all commands take it."""
    return output("kubectl", "options")


@cache
def kustomization(folder: str) -> str:
    """What kubectl builds of a folder."""
    return output("kubectl", "kustomize", folder)


def subcommand(words: Sequence[str]) -> tuple[str, ...]:
    """The program, its command, and what that is divided into."""
    if words[1:3] == ["create", "secret"]:  # divided once more
        return tuple(words[:4])
    divided = words[0] == "kubectl" and words[1] in ("auth", "config", "create", "rollout", "set")
    return tuple(words[: 3 if divided and not words[2].startswith("-") else 2])


def flags(words: Sequence[str]) -> Iterator[str]:
    """Options as help texts write them."""
    for word in words:
        if word == "--":
            return
        if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word):
            yield word.partition("=")[0]


def known(flag: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


@pytest.mark.parametrize(("block", "words"), commands_of("helm"))
def test_helm_options_exist(block: DocCommand, words: list[str]) -> None:
    text = help_text(*subcommand(words))
    for flag in flags(words[2:]):
        assert known(flag, text), f"{block}: helm {words[1]} has no {flag}"


@pytest.mark.parametrize(
    ("block", "words"), [param for param in commands_of("helm") if set(param.values[1]) & {"install", "upgrade"}]
)
def test_helm_releases_render(block: DocCommand, words: list[str]) -> None:
    """With the values of the page: names, types and files are right."""
    release, chart = words[2], words[3]
    assert (ROOT / chart / "Chart.yaml").is_file(), f"{block}: there is no chart {chart}"
    values = [part for value in option(words, "--set", "--set-string") for part in ("--set", value)]
    own = copies(block.page)
    files = [part for value in option(words, "-f", "--values") for part in ("--values", own.get(value, value))]
    if any("reuse-values" in word for word in words) and chart.endswith("edl-job"):  # of a release: any job will do
        files = ["--values", str(ZOO_JOB), "--set", IMAGES, *files]
    namespace = (option(words, "-n", "--namespace") or ["default"])[0]
    done = attempt("helm", "template", release, chart, "--namespace", namespace, *files, *values)
    assert done.returncode == 0, f"{block}: {done.stderr}"


# ------------------------------------------------------------------------ kubectl


@pytest.mark.parametrize(("block", "words"), commands_of("kubectl"))
def test_kubectl_options_exist(block: DocCommand, words: list[str]) -> None:
    text = help_text(*subcommand(words)) + kubectl_options()
    for flag in flags(words[2:]):
        assert known(flag, text), f"{block}: {' '.join(subcommand(words))} has no {flag}"


@pytest.mark.parametrize(("block", "words"), commands_of("kubectl"))
def test_manifests_that_kubectl_is_given_exist(block: DocCommand, words: list[str]) -> None:
    for file in option(words, "-f", "--filename"):
        assert file == "-" or (ROOT / file).is_file(), f"{block}: there is no {file}"
    for folder in option(words, "-k", "--kustomize"):
        assert (ROOT / folder).is_dir(), f"{block}: there is no {folder}"
        assert kustomization(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_new_namespaces_enforce_pod_security(page: Path) -> None:
    """Neither Helm nor kubectl does it; but of the release alone, whose namespace has no pods, and of services."""
    created, labelled = set(), set()
    for words in (words for block in blocks(page) for words in calls(block.text, SAMPLES)):
        if "--create-namespace" in words:
            created |= set(option(words, "-n", "--namespace"))
        if words[:3] == ["kubectl", "create", "namespace"]:
            created.add(words[3])
        if words[:3] == ["kubectl", "label", "namespace"] and words[4:] == [RESTRICTED]:
            labelled.add(words[3])
    assert created - labelled <= {"edl-system", "web"}


# -------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.is_relative_to(DOCS / "tutorials")], ids=lambda p: p.stem
)
def test_values_that_a_tutorial_quotes_are_those_of_the_file(page: Path) -> None:
    """A page that shows an example file shows what is in it, without its comments."""
    text = page.read_text(encoding="utf-8")
    for name, shown in re.findall(r"\]\(\.\./examples/([\w.-]+)\).*?\n```yaml\n(.*?)```", text, re.DOTALL):
        lines = (DOCS / "examples" / name).read_text(encoding="utf-8").splitlines()
        content = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        assert content.strip() == shown.strip(), f"{page.name} and docs/examples/{name} differ"


def test_programs_are_looked_for_everywhere() -> None:
    """The checks above are not empty: each program is on several pages."""
    for program in PROGRAMS:
        assert len(commands_of(program)) >= 10, program


def readmes_own_job() -> str:
    """The job file that the README has its readers write as ``job.yaml``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (own,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if block.startswith("apiVersion")]
    return str(own)


def test_jobs_that_the_readme_submits_can_be_rendered(tmp_path: Path) -> None:
    """A job with paths of this machine runs here, and is refused on a cluster."""
    found_calls = [words for block in blocks(ROOT / "README.md") for words in calls(block.text, SAMPLES)]
    submitted = [words for words in found_calls if words[:2] == ["edl", "submit"]]
    assert submitted
    for words in submitted:
        file = ROOT / words[2]
        if words[2] == "job.yaml":
            file = tmp_path / "job.yaml"
            file.write_text(readmes_own_job(), encoding="utf-8")
        done = CliRunner().invoke(app, ["render", str(file), *words[3:]])
        assert done.exit_code == 0, f"{' '.join(words)}: {done.output}"


def test_the_readmes_own_job_shares_no_runs_with_the_demos(tmp_path: Path) -> None:
    """Runs are found by the job's name: `edl run --resume` would go on with the other job's."""
    own = readmes_own_job()
    (tmp_path / "job.yaml").write_text(own, encoding="utf-8")
    assert load_job_file(tmp_path / "job.yaml").name != load_job_file(ZOO_JOB).name
