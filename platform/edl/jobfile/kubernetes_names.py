"""What Kubernetes takes as names: of objects, of images, and of labels with their values.

Sources: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/, and the grammar of
image references at https://pkg.go.dev/github.com/distribution/reference.
"""

from __future__ import annotations

from edl.jobfile.scalar_types import TextType

_SUBDOMAIN_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_HOST_PATTERN = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)(:[0-9]+)?"
_PATH_COMPONENT_PATTERN = r"[a-z0-9]+([._-]+[a-z0-9]+)*"

CLAIM_NAME = TextType(f"^{_SUBDOMAIN_PATTERN}$", "the name of a PersistentVolumeClaim, such as fileserver-claim")
SECRET_NAME = TextType(f"^{_SUBDOMAIN_PATTERN}$", "the name of a Secret")
IMAGE_NAME = TextType(
    rf"^({_HOST_PATTERN}/)?{_PATH_COMPONENT_PATTERN}(/{_PATH_COMPONENT_PATTERN})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@[a-z0-9]+:[0-9a-f]{{32,128}})?$",
    "the name of an image, such as registry.example/mnist:1",
)
LABEL_NAME = TextType(
    rf"^({_SUBDOMAIN_PATTERN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
    "the name of a label, such as example.com/team",
)
LABEL_VALUE = TextType(
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
    "a label's value: at most 63 of A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit",
)
