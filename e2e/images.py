"""The images under test: built with the Docker engine, given to the cluster, named in a file for the tests.

python -m e2e.images            build and deliver
python -m e2e.images --build    build only what users need: `make images`
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e import site
from e2e.programs import EDL, ROOT, run_program
from e2e.site import ImageDelivery, TargetSite

from edl import __version__

NAMES = ROOT / "e2e" / ".state" / "images.json"
BUILD_SECONDS = 1800.0
MISSING = "edl/no-such-image:dev"
"""An image that nobody has."""


@dataclass(frozen=True)
class JobImages:
    """Names as pods use them.

    Attributes:
        training: all roles, no model.
        submitter: the light image.
        zoo: the training image with the models of these tests.
        database: a server for `edl sql --submit`.
    """

    training: str = "edl/edl:dev"
    submitter: str = "edl/submitter:dev"
    zoo: str = "edl/e2e:dev"
    database: str = "edl/e2e-postgresql:dev"


def build_user_images() -> None:
    """Build the images that users install from. They get the tag of this version, too."""
    images = JobImages()
    for name, dockerfile in ((images.training, "Dockerfile"), (images.submitter, "submitter.Dockerfile")):
        run_program("docker", "build", "-t", name, "-f", ROOT / "images" / dockerfile, ROOT, seconds=BUILD_SECONDS)
        run_program("docker", "tag", name, _of_this_version(name))


def build_images() -> JobImages:
    """Build all images that the tests need."""
    build_user_images()
    images = JobImages()
    server = (ROOT / "e2e" / "postgresql.Dockerfile").read_text()
    run_program("docker", "build", "-t", images.database, "-", stdin=server, seconds=BUILD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        zoo = Path(folder) / "model_zoo"
        shutil.copytree(ROOT / "model_zoo", zoo, ignore=shutil.ignore_patterns("__pycache__"))
        # The tutorial's line names this module, and e2e/zoo has the same model at a pace.
        (zoo / "mnist" / "mnist_functional_api.py").rename(zoo / "mnist" / "unpaced.py")
        shutil.copytree(ROOT / "e2e" / "zoo", zoo, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        run_program(EDL, "zoo", "build", zoo, "--image", images.zoo, "--base", images.training, seconds=BUILD_SECONDS)
    return images


def _of_this_version(name: str) -> str:
    """The tag that charts and the scaffold of ``edl zoo init`` name by default: the project's version."""
    return f"{name.rpartition(':')[0]}:{__version__}"


def deliver_images(images: JobImages, target_site: TargetSite) -> JobImages:
    """Give the images to the cluster; their names there."""
    names = list(asdict(images).values())
    if target_site.delivery is ImageDelivery.LOCAL_CLUSTER:
        run_program(str(target_site.script), "load", *names, seconds=BUILD_SECONDS)
    elif target_site.delivery is ImageDelivery.KIND:
        run_program("kind", "load", "docker-image", "--name", target_site.kind_name, *names, seconds=BUILD_SECONDS)
    else:
        return JobImages(**{role: _push_image(name, target_site.prefix) for role, name in asdict(images).items()})
    return images


def _push_image(name: str, prefix: str) -> str:
    """Push under a tag that no older image has: nodes keep what they pulled."""
    content = (
        run_program("docker", "image", "inspect", "--format", "{{.Id}}", name).strip().removeprefix("sha256:")[:12]
    )
    pushed = f"{prefix}/{name.partition('/')[2].partition(':')[0]}:{content}"
    run_program("docker", "tag", name, pushed)
    run_program("docker", "push", pushed, seconds=BUILD_SECONDS)
    return pushed


def delivered_images() -> JobImages:
    """The names of the images that the cluster has."""
    if not NAMES.exists():
        raise FileNotFoundError(f"{NAMES} is missing: `python -m e2e.images` builds the images and delivers them")
    return JobImages(**json.loads(NAMES.read_text()))


def main() -> None:
    """Build, and deliver to the cluster of ``KUBECONFIG``, or build only what users need."""
    parser = argparse.ArgumentParser(description="Build the images under test and give them to the cluster.")
    parser.add_argument("--build", action="store_true", help="build only what users install from")
    options = parser.parse_args()
    if options.build:
        build_user_images()
        return
    target_site = site.detect_site()  # before minutes are spent
    images = deliver_images(build_images(), target_site)
    NAMES.parent.mkdir(exist_ok=True)
    NAMES.write_text(json.dumps(asdict(images), indent=1) + "\n")


if __name__ == "__main__":
    main()
