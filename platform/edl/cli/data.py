"""``edl data``: example data sets, written as files that ``edl run`` can read; files to and from volume claims."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from edl.api.errors import BadInputError
from edl.cli import data_copy
from edl.reporting.rich_console import make_console

if TYPE_CHECKING:
    from edl.data.dataset_writer import DatasetLayout
    from edl.data.sample_datasets import GeneratedDataset

app = typer.Typer(
    help="Write example data sets; copy files to and from volumes of a cluster.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(data_copy.cp)
app.command()(data_copy.ls)

# NumPy, protobuf and scikit-learn are imported when a command runs: `edl` starts quickly, and the light client has none
# of them. Hence these choices are named here too; mypy compares them with those of edl.data.
Format: TypeAlias = Literal["recordio", "csv"]
Compression: TypeAlias = Literal["none", "snappy", "gzip"]
ImageSource: TypeAlias = Literal["auto", "keras", "digits"]

OutputArgument = Annotated[Path, typer.Argument(help="Directory to write train/ and test/ into.", show_default=False)]
FormatOption = Annotated[
    Format, typer.Option("--format", help="recordio: tf.train.Example records; csv: rows with a header.")
]
CompressionOption = Annotated[Compression, typer.Option(help="Compression of RecordIO files.")]
PerFileOption = Annotated[int, typer.Option("--records-per-file", help="Maximum number of records per file.", min=1)]
ShareOption = Annotated[
    float, typer.Option("--validation", help="Share of the records in test/ (MNIST has its own test set).")
]
SeedOption = Annotated[int, typer.Option(help="Random seed; the same seed gives the same files.", min=0)]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing train/ and test/.")]


@app.command()
def mnist(
    out: OutputArgument,
    file_format: FormatOption = "recordio",
    compression: CompressionOption = "none",
    records_per_file: PerFileOption = 16_384,
    source: Annotated[
        ImageSource,
        typer.Option(help="keras: MNIST, needs a network; digits: scikit-learn's, offline; auto: whichever works."),
    ] = "auto",
    validation: ShareOption = 0.2,
    records: Annotated[
        int | None, typer.Option(help="Number of training records; more than exist are made by shifting images.", min=1)
    ] = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write handwritten digits, 28x28: MNIST or, without a network, the digits of scikit-learn."""

    def load() -> GeneratedDataset:
        from edl.data import sample_datasets

        return sample_datasets.make_mnist_dataset(source, validation_share=validation, records=records, seed=seed)

    _make_data_set(load, out, file_format, compression, records_per_file, force)


@app.command()
def iris(
    out: OutputArgument,
    file_format: FormatOption = "csv",
    compression: CompressionOption = "none",
    records_per_file: PerFileOption = 16_384,
    validation: ShareOption = 0.2,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write the Iris flowers: 150 records of four lengths and a class."""

    def load() -> GeneratedDataset:
        from edl.data import sample_datasets

        return sample_datasets.make_iris_dataset(validation_share=validation, seed=seed)

    _make_data_set(load, out, file_format, compression, records_per_file, force)


@app.command()
def clicks(
    out: OutputArgument,
    records: Annotated[int, typer.Option(help="Number of records of train/ and test/ together.", min=2)] = 100_000,
    vocabulary: Annotated[
        int, typer.Option(help="Number of ids of all 26 categorical features, in equal shares.", min=1)
    ] = 1_000_000,
    exponent: Annotated[
        float, typer.Option(help="Exponent of the Zipf law of the ids; a larger one makes fewer ids frequent.", min=0)
    ] = 1.05,
    file_format: FormatOption = "recordio",
    compression: CompressionOption = "none",
    records_per_file: PerFileOption = 131_072,
    validation: ShareOption = 0.1,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write a synthetic click log: 13 numbers, 26 ids and a label, drawn from a model with a known best AUC."""

    def load() -> GeneratedDataset:
        from edl.data import sample_datasets
        from edl.data.synthetic_clicks import ClickModel

        return sample_datasets.make_click_dataset(
            ClickModel(vocabulary, exponent, seed), records=records, validation_share=validation
        )

    _make_data_set(load, out, file_format, compression, records_per_file, force)


_DISTRIBUTION_BY_MODULE = {"google": "protobuf"}
"""Packages whose modules have another name than the one that pip installs."""


def _make_data_set(
    load: Callable[[], GeneratedDataset],
    out: Path,
    file_format: Format,
    compression: Compression,
    per_file: int,
    force: bool,
) -> None:
    try:
        from edl.data.dataset_writer import DatasetLayout, check_output_empty

        layout = DatasetLayout(file_format, compression, per_file)
        if not force:
            check_output_empty(out)
        with make_console(sys.stderr).status("Loading"):
            data = load()
    except ImportError as error:
        package = _DISTRIBUTION_BY_MODULE.get((error.name or "").partition(".")[0], error.name)
        hint = "pip install 'edl-platform[train]'"
        raise BadInputError(f"making data needs the package {package}", hint=hint) from error
    _write_data_set(data, out, layout)


def _write_data_set(data: GeneratedDataset, out: Path, layout: DatasetLayout) -> None:
    from edl.data.dataset_writer import write_dataset

    records = len(data.training) + len(data.validation)
    errors = make_console(sys.stderr)
    errors.print(f"Writing {records:,} records to {out}/train and {out}/test", highlight=False, soft_wrap=True)
    columns = (TextColumn("Writing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=records)
        written = write_dataset(data, out, layout, lambda count: progress.advance(task, count))
    _print_summary(data, written)


def _print_summary(data: GeneratedDataset, written: dict[str, list[Path]]) -> None:
    table = Table("directory", "records", "files", "size", box=None)
    for files, records in zip(written.values(), (data.training, data.validation), strict=True):
        size = decimal(sum(file.stat().st_size for file in files))
        table.add_row(str(files[0].parent), f"{len(records):,}", str(len(files)), size)
    out = make_console()
    out.print(f"From {data.origin}.", highlight=False)
    out.print(table)
