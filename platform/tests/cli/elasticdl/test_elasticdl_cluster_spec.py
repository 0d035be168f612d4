"""A cluster spec's changes of pods and Service become overrides of the job file, or are refused with file and line."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.cli.elasticdl.job_translation import translate_job
from edl.cli.elasticdl.parser import parse_command_line
from edl.cluster.kubernetes.job_manifests import render_job, render_pod
from edl.cluster.kubernetes.spec_validation import find_spec_problems

EXAMPLE = Path(__file__).with_name("cluster_spec_example.py")
JOB = [
    "--job_name=mnist",
    "--image_name=registry.example/mnist:1",
    "--model_def=mnist.model.custom_model",
    "--training_data=/data/train",
    "--volume=claim_name=files,mount_path=/data",
]


def job(*words: str) -> JobSpec:
    return translate_job(parse_command_line("train", [*JOB, *words]), Path(), find_spec_problems).spec


def pod(spec: JobSpec, role: Role) -> dict[str, Any]:
    return render_pod(spec, role, 0, namespace="team", job_uid="", run_dir="/data/edl")


def cluster_file(tmp_path: Path, body: str) -> str:
    path = tmp_path / "spec.py"
    path.write_text(f"class Cluster:\n    def with_pod(self, pod):\n        {body}\n\ncluster = Cluster()\n")
    return f"--cluster_spec={path}"


def test_pods_are_what_with_pod_makes_of_them() -> None:
    spec, plain = job(f"--cluster_spec={EXAMPLE}"), job()
    for role in (Role.PS, Role.WORKER):
        manifest, before = pod(spec, role), pod(plain, role)
        assert manifest["metadata"]["labels"]["team"] == "a"
        added = [each for each in manifest["spec"]["tolerations"] if each not in before["spec"]["tolerations"]]
        assert added == [{"key": "pool", "operator": "Equal", "value": "training", "effect": "NoSchedule"}]
        assert all(each in manifest["spec"]["tolerations"] for each in before["spec"]["tolerations"])
    worker = pod(spec, Role.WORKER)
    assert worker["spec"]["nodeSelector"] == {"kind": "fast"}
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in worker["spec"]["containers"][0]["env"]
    assert "nodeSelector" not in pod(spec, Role.PS)["spec"]


def test_the_service_is_what_with_service_makes_of_it() -> None:
    manifests = render_job(job(f"--cluster_spec={EXAMPLE}"), namespace=None, token="t")
    (service,) = [each for each in manifests if each["kind"] == "Service"]
    assert service["metadata"]["annotations"] == {"example.com/internal": "true"}


def test_a_change_of_all_pods_stands_in_the_job_file_once(tmp_path: Path) -> None:
    spec = job(cluster_file(tmp_path, "pod.metadata.labels['team'] = 'a'; return pod"))
    assert spec.pod.overrides == {"metadata": {"labels": {"team": "a"}}}
    assert not spec.workers.overrides


def test_a_spec_that_changes_nothing_is_mentioned(tmp_path: Path) -> None:
    line = parse_command_line("train", [*JOB, cluster_file(tmp_path, "return pod")])
    notes = translate_job(line, Path(), find_spec_problems).notes
    assert [note for note in notes if note.startswith("--cluster_spec") and "changes nothing" in note]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise SystemExit(0)", ("with_pod()", "SystemExit")),
        ("raise KeyError('zone')", ("spec.py:3", "with_pod()", "KeyError", "zone")),
        ("pod.metadata.labels['team'] = 'a'", ("with_pod() returned NoneType", "V1Pod")),
        ("pod.spec.volumes.clear(); return pod", ("removes", "volumes")),
        ("pod.metadata.name = 'mine'; return pod", ("pod.overrides.metadata.name", "is set by EDL")),
        ("pod.metadata.labels['i'] = pod.metadata.name; return pod", ("by their index", "worker", "ps")),
    ],
)
def test_what_no_job_file_can_say(tmp_path: Path, body: str, said: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError) as error:
        job(cluster_file(tmp_path, body))
    keys = [key for key in said if key not in ("worker", "ps")]
    assert not missing_keys(str(error.value), "--cluster_spec", *keys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", ("is not Python", "spec.py:1")),
        ("import no_such_package\n", ("ModuleNotFoundError", "spec.py:1")),
        ("import sys\nsys.exit(0)\n", ("SystemExit", "spec.py:2")),
        ("other = 1\n", ("no object called cluster", "with_pod")),
    ],
)
def test_files_that_are_no_cluster_spec(tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    (tmp_path / "spec.py").write_text(text)
    with pytest.raises(BadInputError) as error:
        job(f"--cluster_spec={tmp_path / 'spec.py'}")
    assert not missing_keys(str(error.value), *said)


def test_a_file_that_is_missing() -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        job("--cluster_spec=nowhere.py")


JSON_SPEC = {
    "pod_spec": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "worker_pod_spec": {
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "env": [{"name": "MODE", "value": "fast"}],
        "affinity": {"nodeAffinity": {}},
    },
    "ps_spec": {"labels": {"disk": "fast"}},
    "service_spec": {"type": "ClusterIP", "publishNotReadyAddresses": True},
}


@pytest.mark.parametrize(
    "encode", [str, lambda text: base64.b64encode(text.encode()).decode()], ids=["plain", "base64"]
)
def test_the_json_form(encode: Any) -> None:
    spec = job(f"--cluster_spec_json={encode(json.dumps(JSON_SPEC))}")
    worker, server = pod(spec, Role.WORKER), pod(spec, Role.PS)
    assert (worker["metadata"]["labels"]["team"], server["metadata"]["labels"]["disk"]) == ("a", "fast")
    assert "disk" not in worker["metadata"]["labels"]
    assert worker["metadata"]["annotations"]["note"] == "b"
    assert {"key": "pool", "operator": "Exists"} in worker["spec"]["tolerations"]
    assert {"name": "MODE", "value": "fast"} in worker["spec"]["containers"][0]["env"]
    assert worker["spec"]["affinity"] == {"nodeAffinity": {}}
    assert spec.master.service_overrides["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ("must be a JSON object",)),
        ("[1]", ("must be a JSON object",)),
        ('{"worker": {}}', ("no section 'worker'", "worker_spec")),
        ('{"pod_spec": {"label": {}}}', ("no part 'label'", "labels")),
        ('{"pod_spec": 3}', ("must be a mapping",)),
        ('{"pod_spec": {"labels": ["a"]}}', ("pod_spec.labels", "must be a mapping")),
        ('{"pod_spec": {"labels": null}}', ("pod_spec.labels", "must be a mapping")),
        ('{"pod_spec": {"env": "x"}}', ("pod_spec.env", "must be a list of mappings")),
        ('{"pod_spec": {"tolerations": {"a": 1}}}', ("pod_spec.tolerations", "must be a list of mappings")),
    ],
)
def test_json_that_is_no_cluster_spec(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError) as error:
        job(f"--cluster_spec_json={text}")
    assert not missing_keys(str(error.value), "--cluster_spec_json", *said)
