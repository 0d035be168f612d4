"""``edl data cp`` and ``edl data ls``: files to and from a volume claim, through a pod that lives for one copy."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, NamespaceOption, connect_api
from edl.ops.file_transfer import IMAGE_REMEDY, IMAGE_VARIABLE, open_volume

if TYPE_CHECKING:
    from edl.ops.file_transfer import CopyPlan, VolumeEntry, VolumeFiles
    from edl.ops.helper_pod import ClaimPath, HelperPodSpec

ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="Image with Python and EDL for the pod that copies, such as your submitter image.",
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
        help="PriorityClass of the pod that copies.",
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
    """Copy files between this machine and a volume claim: edl data cp LOCAL CLAIM:/path, or back.

    A file is copied to the target path, or into it if that is a directory. The content of a directory is copied into
    the target directory. Files that are already there with the same content are skipped, and the same command continues
    an interrupted copy. Checksums are always verified.
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
        raise BadInputError("this names no claim", where=where, hint="Such as: edl data ls fileserver-claim:/mnist")
    pod_options = _helper_pod_options(volume_path.claim, image, (uid, gid), 10, priority, read_only=True)
    with open_volume(connect_api(context, namespace), pod_options) as session:
        entries = session.run_with_retries(lambda files: _list_entries(files, volume_path, recursive=recursive))
    if as_json:
        keys = ("path", "kind", "size", "modified")
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in entries]))
        return
    for entry in entries:
        size = f"{entry.size:,}" if entry.kind == "file" else "-"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified))
        print(f"{size:>16}  {when}  {entry.path}{'/' if entry.kind == 'directory' else ''}")


def _plan_copy(
    files: VolumeFiles, source: str, target: str, upload_target: ClaimPath | None, download_source: ClaimPath | None
) -> CopyPlan:
    from edl.ops import file_transfer

    if upload_target is not None:
        return file_transfer.plan_upload(Path(source), upload_target.path, files.stat(upload_target.path).kind)
    assert download_source is not None
    found = files.stat(download_source.path)
    if found.kind == "missing":
        raise BadInputError(
            "no such file or directory", where=source, hint=f"Look with: edl data ls {download_source.claim}:/"
        )
    entries = files.list_entries(download_source.path, recursive=True)
    inside = target.endswith("/") or Path(target).is_dir()
    return file_transfer.plan_download(
        download_source.path, entries, Path(target), is_file=found.kind == "file", into_directory=inside
    )


def _helper_pod_options(
    claim: str, image: str | None, who: tuple[int, int], minutes: int, priority: str, *, read_only: bool
) -> HelperPodSpec:
    from edl.api.pod_spec import RunAsSpec
    from edl.ops.helper_pod import HelperPodSpec

    if not image:  # nor by the variable
        raise BadInputError("No image is named for the pod that copies", where="--image", hint=IMAGE_REMEDY)
    return HelperPodSpec(
        claim, image, RunAsSpec(*who), read_only, minutes * 60, image_remedy=IMAGE_REMEDY, priority_class=priority
    )


def _list_entries(files: VolumeFiles, volume_path: ClaimPath, *, recursive: bool) -> list[VolumeEntry]:
    if files.stat(volume_path.path).kind == "missing":
        above = f"{volume_path.claim}:{PurePosixPath(volume_path.path).parent}"
        raise BadInputError("there is no such path", where=str(volume_path), hint=f"Look with: edl data ls {above}")
    return list(files.list_entries(volume_path.path, recursive=recursive))


def _print_result(plan: CopyPlan, travelled: int, source: str, target: str, *, as_json: bool) -> None:
    if as_json:
        told = {
            "source": source,
            "target": target,
            "files": len(plan.items),
            "bytes": plan.size,
            "travelled": travelled,
        }
        print(json.dumps(told | {"left_out": list(plan.skipped)}))
        return
    count = len(plan.items)
    there = f" ({plan.size - travelled:,} were there already)" if travelled < plan.size else ""
    print(f"{count:,} {'file' if count == 1 else 'files'}, {plan.size:,} bytes{there}, checksums right: {target}")
    for name in plan.skipped:
        print(f"left out, since it is neither file nor directory: {name}", file=sys.stderr)
