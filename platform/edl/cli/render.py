"""``edl render``: the manifests of a job, for users who apply them with other tools."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from edl.cluster.kubernetes.job_manifests import new_job_token, render_job
from edl.cluster.kubernetes.resource_kinds import SECRETS
from edl.cluster.kubernetes.spec_validation import find_spec_problems, find_spec_warnings
from edl.jobfile.loader import load_job_file

_PLAIN_SCALAR = re.compile(r"[A-Za-z/][-A-Za-z0-9./_]*(:[A-Za-z0-9][-A-Za-z0-9./_:]*)*|[0-9]+([KMGT]i|m)")
# kubectl reads YAML 1.1, which has more words for true, false and null than YAML 1.2.
_YAML_KEYWORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


class _ManifestRepresenter(SafeRepresenter):
    """Writes strings that both YAML 1.1 and YAML 1.2 read as strings, and never writes anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> ScalarNode:
        plain = _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_KEYWORDS
        lines = text.endswith("\n") and text.replace("\n", "").isprintable()
        style = None if plain else "|" if lines else '"'
        node: ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node


_ManifestRepresenter.add_representer(str, _ManifestRepresenter.represent_text)


def manifests_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """One YAML document per manifest. Keeps the order of manifests and of their fields."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _ManifestRepresenter
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 2**16  # a folded line is harder to search
    out = io.StringIO()
    yaml.explicit_start = True
    yaml.dump_all(manifests, out)
    return out.getvalue()


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def render(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Namespace; by default the one where they are applied."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override a field, such as train.epochs=3; repeatable."),
    ] = None,
    token_secret: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A Secret with the job's token in the key 'token'; a new one by default."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue this run of the job: its id, or latest.")
    ] = None,
) -> None:
    """Print the manifests of a job, without contacting a cluster.

    `edl render job.yaml | kubectl create -f -` submits it; `kubectl apply -f -` does too, for those who may read
    Secrets. Without --token-secret the output contains a new secret token: do not commit it.
    """
    spec = load_job_file(job, settings or (), extra_rules=find_spec_problems)
    token = new_job_token() if token_secret is None else None
    manifests = render_job(spec, namespace=namespace, token=token, token_secret=token_secret, run=resume)
    for note in find_spec_warnings(spec):
        typer.echo(f"warning: {note}", err=True)
    typer.echo("\n".join(_heading_lines(str(job), holds_token=token is not None)))
    # The token's Secret comes after the Job: the master of an earlier job with this name leaves the
    # Secret alone once it sees the new Job.
    typer.echo(manifests_yaml(sorted(manifests, key=lambda manifest: manifest["kind"] == SECRETS.name)), nl=False)


def _heading_lines(job: str, *, holds_token: bool) -> Iterator[str]:
    yield f"# Rendered from {job}. To submit the job: kubectl create -f FILE"
    yield "# (kubectl apply -f FILE needs the right to read Secrets, which data scientists do not have)"
    if holds_token:
        yield "# This file contains the job's secret token: do not commit it. With --token-secret NAME, the job uses an"
        yield "# existing Secret instead."
