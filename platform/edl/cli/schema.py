"""``edl schema``: the JSON Schema of job files, for editors and for checks elsewhere."""

from __future__ import annotations

import typer

from edl.jobfile.json_schema import JOB_SCHEMA, read_published_schema

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of job files.

    An editor with a YAML language server completes and checks a job file if its first line is
    `# yaml-language-server: $schema=FILE`, where FILE is this output.
    """
    typer.echo(read_published_schema(JOB_SCHEMA), nl=False)
