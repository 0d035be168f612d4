"""``edl data``: statistics and conversion of data sets; example data sets; files to and from volume claims."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from rich.table import Table

from edl.api.errors import BadInputError
from edl.cli.data_conversion import convert
from edl.cli.data_statistics import schema, stats
from edl.cli.options import ContextOption, NamespaceOption, connect_api
from edl.cli.train_extra import needing_train_extra
from edl.ops import file_transfer
from edl.ops.file_transfer import IMAGE_REMEDY, IMAGE_VARIABLE, open_volume
from edl.reporting.progress_bars import count_progress
from edl.reporting.rich_console import make_console
from edl.reporting.unit_formats import format_bytes

if TYPE_CHECKING:
    from edl.data.dataset_writer import DatasetLayout
    from edl.data.sample_datasets import GeneratedDataset
    from edl.ops.file_transfer import CopyPlan, VolumeEntry, VolumeFiles
    from edl.ops.helper_pod import ClaimPath, HelperPodSpec


ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="Image with Python and EDL for the pod that copies the files, such as your submitter image.",
        envvar=IMAGE_VARIABLE,
        show_envvar=True,
        show_default=False,
    ),
]
UserOption = Annotated[int, typer.Option("--uid", help="User id for the files on the claim.", min=1)]
GroupOption = Annotated[int, typer.Option("--gid", help="Group id for the files on the claim.", min=0)]
PriorityOption = Annotated[
    str,
    typer.Option(
        "--priority",
        metavar="NAME",
        help="PriorityClass of the pod that copies the files.",
        envvar="EDL_DATA_PRIORITY",
        show_envvar=True,
    ),
]
MinutesOption = Annotated[int, typer.Option("--minutes", help="Time after which the pod ends by itself.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A path on this machine, or CLAIM:/path.", show_default=False)
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A path on this machine, or CLAIM:/path.", show_default=False)
    ],
    image: ImageOption = None,
    uid: UserOption = 1000,
    gid: GroupOption = 1000,
    minutes: MinutesOption = 60,
    priority: PriorityOption = "low",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy files to a volume claim of a cluster, or from one.

    edl data cp LOCAL CLAIM:/path, or the other way round. A file is copied to the target path, or into it if that is a
    directory. The content of a directory is copied into the target directory. Files that are already there with the
    same content are skipped, and the same command continues an interrupted copy. Checksums are always verified.
    """
    from edl.ops.helper_pod import parse_claim_path

    upload_target, download_source = parse_claim_path(target), parse_claim_path(source)
    if (upload_target is None) == (download_source is None):
        raise BadInputError(
            "exactly one of the two must be on a claim",
            where=f"edl data cp {source} {target}",
            hint="Such as: edl data cp mnist/ fileserver-claim:/mnist",
        )
    api = connect_api(context, namespace)
    volume_path = upload_target or download_source
    assert volume_path is not None
    if upload_target is not None and not Path(source).exists():
        raise BadInputError("no such file or directory", where=source)
    pod_options = _helper_pod_options(
        volume_path.claim, image, (uid, gid), minutes, priority, read_only=upload_target is None
    )
    with open_volume(api, pod_options) as session:
        plan = session.run_with_retries(lambda files: _plan_copy(files, source, target, upload_target, download_source))
        travelled = session.copy_files(plan, upload=upload_target is not None)
    _print_result(plan, travelled, source, target, as_json=as_json)


def ls(
    where: Annotated[str, typer.Argument(metavar="CLAIM:/path", help="A directory of a claim.", show_default=False)],
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Include subdirectories.")] = False,
    image: ImageOption = None,
    uid: UserOption = 1000,
    gid: GroupOption = 1000,
    priority: PriorityOption = "low",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files of a volume claim: edl data ls CLAIM:/path."""
    from edl.ops.helper_pod import ClaimPath, parse_claim_path

    volume_path = parse_claim_path(where) or (ClaimPath(where, "/") if where and "/" not in where else None)
    if volume_path is None:
        raise BadInputError(
            "this is not a path on a claim", where=where, hint="Such as: edl data ls fileserver-claim:/mnist"
        )
    pod_options = _helper_pod_options(volume_path.claim, image, (uid, gid), 10, priority, read_only=True)
    with open_volume(connect_api(context, namespace), pod_options) as session:
        entries = session.run_with_retries(lambda files: _list_entries(files, volume_path, recursive=recursive))
    if as_json:
        print(json.dumps([_entry_json(entry) for entry in entries]))
        return
    for entry in entries:
        size = f"{entry.size:,}" if entry.kind == "file" else "-"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified_at))
        print(f"{size:>16}  {when}  {entry.path}{'/' if entry.kind == 'directory' else ''}")


def _entry_json(entry: VolumeEntry) -> dict[str, str | int | float]:
    return {"path": entry.path, "kind": entry.kind, "size": entry.size, "modified": entry.modified_at}


def _plan_copy(
    files: VolumeFiles, source: str, target: str, upload_target: ClaimPath | None, download_source: ClaimPath | None
) -> CopyPlan:
    if upload_target is not None:
        return file_transfer.plan_upload(Path(source), upload_target.path, files.stat_path(upload_target.path).kind)
    assert download_source is not None
    source_stat = files.stat_path(download_source.path)
    if source_stat.kind == "missing":
        raise BadInputError(
            "no such file or directory", where=source, hint=f"Look with: edl data ls {download_source.claim}:/"
        )
    entries = files.list_entries(download_source.path, recursive=True)
    inside = target.endswith("/") or Path(target).is_dir()
    return file_transfer.plan_download(
        download_source.path, entries, Path(target), is_file=source_stat.kind == "file", into_directory=inside
    )


def _helper_pod_options(
    claim: str, image: str | None, user_and_group: tuple[int, int], minutes: int, priority: str, *, read_only: bool
) -> HelperPodSpec:
    from edl.api.pod_spec import RunAsSpec
    from edl.ops.helper_pod import HelperPodSpec

    # The default of --image comes from an environment variable, which is not set either.
    if not image:
        raise BadInputError("There is no image for the pod that copies files", where="--image", hint=IMAGE_REMEDY)
    return HelperPodSpec(
        claim,
        image,
        RunAsSpec(*user_and_group),
        read_only,
        minutes * 60,
        image_remedy=IMAGE_REMEDY,
        priority_class=priority,
    )


def _list_entries(files: VolumeFiles, volume_path: ClaimPath, *, recursive: bool) -> list[VolumeEntry]:
    if files.stat_path(volume_path.path).kind == "missing":
        above = f"{volume_path.claim}:{PurePosixPath(volume_path.path).parent}"
        raise BadInputError("there is no such path", where=str(volume_path), hint=f"Look with: edl data ls {above}")
    return list(files.list_entries(volume_path.path, recursive=recursive))


def _print_result(plan: CopyPlan, travelled: int, source: str, target: str, *, as_json: bool) -> None:
    if as_json:
        result = {
            "source": source,
            "target": target,
            "files": len(plan.pending_items),
            "bytes": plan.pending_bytes,
            "travelled": travelled,
        }
        print(json.dumps(result | {"left_out": list(plan.skipped_files)}))
        return
    count = len(plan.pending_items)
    existing = plan.pending_bytes - travelled
    unchanged = f" ({format_bytes(existing)} were already in the target)" if existing else ""
    print(
        f"{count:,} {'file' if count == 1 else 'files'}, {format_bytes(plan.pending_bytes)}{unchanged}, "
        f"checksums verified: {target}"
    )
    for name in plan.skipped_files:
        print(f"skipped, because it is neither a file nor a directory: {name}", file=sys.stderr)


app = typer.Typer(
    help="Statistics of tables; conversion between formats; example data sets; files to and from volumes of a cluster.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)
app.command()(cp)
app.command()(ls)
app.command()(stats)
app.command()(schema)
app.command()(convert)

# NumPy, protobuf and scikit-learn are imported when a command runs: `edl` starts quickly, and the
# light client has none of them. Hence these choices are named here too; mypy compares them with
# those of edl.data.
Format: TypeAlias = Literal["recordio", "csv"]
Compression: TypeAlias = Literal["none", "snappy", "gzip"]
ImageSource: TypeAlias = Literal["auto", "keras", "digits"]

OutputArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory to write train/ and test/ into.", show_default=False)
]
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
        int | None,
        typer.Option(help="Number of training records; if the source has fewer, shifted images are added.", min=1),
    ] = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write handwritten digits of 28 x 28 pixels.

    They are MNIST or, without a network, the digits of scikit-learn.
    """

    def load_digits() -> GeneratedDataset:
        from edl.data import sample_datasets

        return sample_datasets.make_mnist_dataset(source, validation_share=validation, records=records, seed=seed)

    _make_data_set(load_digits, out, file_format, compression, records_per_file, force)


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

    def load_flowers() -> GeneratedDataset:
        from edl.data import sample_datasets

        return sample_datasets.make_iris_dataset(validation_share=validation, seed=seed)

    _make_data_set(load_flowers, out, file_format, compression, records_per_file, force)


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
    """Write a synthetic click log.

    A record has 13 numbers, 26 ids and a label, drawn from a model with a known best AUC.
    """

    def load_clicks() -> GeneratedDataset:
        from edl.data import sample_datasets
        from edl.data.synthetic_clicks import ClickModel

        return sample_datasets.make_click_dataset(
            ClickModel(vocabulary, exponent, seed), records=records, validation_share=validation
        )

    _make_data_set(load_clicks, out, file_format, compression, records_per_file, force)


def _make_data_set(
    load: Callable[[], GeneratedDataset],
    out: Path,
    file_format: Format,
    compression: Compression,
    per_file: int,
    force: bool,
) -> None:
    with needing_train_extra("making data needs"):
        from edl.data.dataset_writer import DatasetLayout, check_output_empty

        layout = DatasetLayout(file_format, compression, per_file)
        if not force:
            check_output_empty(out)
        with make_console(sys.stderr).status("Loading"):
            data = load()
    _write_data_set(data, out, layout)


def _write_data_set(data: GeneratedDataset, out: Path, layout: DatasetLayout) -> None:
    from edl.data.dataset_writer import write_dataset

    records = len(data.training) + len(data.validation)
    errors = make_console(sys.stderr)
    errors.print(f"Writing {records:,} records to {out}/train and {out}/test", highlight=False, soft_wrap=True)
    with count_progress(errors, "Writing") as progress:
        task = progress.add_task("", total=records)
        written = write_dataset(data, out, layout, lambda count: progress.advance(task, count))
    _print_summary(data, written)


def _print_summary(data: GeneratedDataset, written: dict[str, list[Path]]) -> None:
    table = Table("directory", "records", "files", "size", box=None)
    for files, records in zip(written.values(), (data.training, data.validation), strict=True):
        size = format_bytes(sum(file.stat().st_size for file in files))
        table.add_row(str(files[0].parent), f"{len(records):,}", str(len(files)), size)
    out = make_console()
    out.print(f"From {data.origin}.", highlight=False)
    out.print(table)
