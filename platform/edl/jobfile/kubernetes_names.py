"""What Kubernetes takes as names: of objects, of images, and of labels with their values.

Sources: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and .../labels/, and the grammar of
image references at https://pkg.go.dev/github.com/distribution/reference.
"""

from __future__ import annotations

from edl.jobfile.scalar_types import Text

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_HOST = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)(:[0-9]+)?"
_FOLDER = r"[a-z0-9]+([._-]+[a-z0-9]+)*"

CLAIM = Text(f"^{_SUBDOMAIN}$", "the name of a PersistentVolumeClaim, such as fileserver-claim")
SECRET = Text(f"^{_SUBDOMAIN}$", "the name of a Secret")
IMAGE = Text(
    rf"^({_HOST}/)?{_FOLDER}(/{_FOLDER})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@[a-z0-9]+:[0-9a-f]{{32,128}})?$",
    "the name of an image, such as registry.example/mnist:1",
)
LABEL = Text(
    rf"^({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
    "the name of a label, such as example.com/team",
)
LABEL_VALUE = Text(
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
    "a label's value: at most 63 of A-Z, a-z, 0-9, -, _ and ., beginning and ending with a letter or digit",
)
