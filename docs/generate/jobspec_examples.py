"""Examples of job files for the reference. A test loads each of them: a mistake here fails."""

from __future__ import annotations

from collections.abc import Mapping

MINIMAL = """\
name: mnist
model: {definition: mnist.mnist_functional_api.custom_model}
data: {training: demo-data/mnist/train}
"""

WHOLE = """\
apiVersion: edl.dev/v1
name: mnist
image: registry.example.com/team/mnist:1
model: {zoo: /model_zoo, definition: mnist.mnist_functional_api.custom_model}
data: {training: /data/mnist/train, validation: /data/mnist/test}
train: {epochs: 5, minibatch_size: 64, evaluation_steps: 1000}
ps: {count: 2, priority: high}
workers: {min: 2, max: 8, priority: low, resources: {cpu: 1, memory: 2Gi}}
checkpoint: {every_steps: 1000, keep: 3}
volumes: [{claim: fileserver-claim, mount: /data}]
"""

EXAMPLES: Mapping[str, str] = {
    "model": """\
model:
  zoo: my_zoo
  definition: mnist.mlp.custom_model   # the function custom_model of my_zoo/mnist/mlp.py
  params: {units: 64}                  # called as custom_model(units=64)
""",
    "data": """\
data:
  training: [/data/clicks/2026-01, /data/clicks/2026-02]
  validation: /data/clicks/held-back
  reader: {format: csv, sep: ";"}
  max_corrupt_records: 10
""",
    "train": """\
train: {epochs: 20, minibatch_size: 64, minibatches_per_task: 16, max_steps: 50000, on_nan: skip}
""",
    "strategy": """\
strategy: {name: AllReduce, learning_rate_scaling: linear, reference_world: 4}   # or {name: Local}, to debug
""",
    "checkpoint": """\
checkpoint: {every_steps: 500, keep: 5}   # or null: at step 0 and at the end only
""",
    "export": """\
export: {path: /data/models/mnist}   # or null: nothing is exported
""",
    "master": """\
master: {priority: high, resources: {cpu: 200m, memory: 512Mi}, lost_timeout: 1h}
""",
    "ps": """\
ps: {count: 2, priority: high, embedding_threshold: 16Mi, resources: {cpu: 1, memory: 8Gi}}
""",
    "workers": """\
workers:
  min: 2
  max: 16
  priority: high=0.25   # four of sixteen are as hard to preempt as a service, twelve are not
  resources: {cpu: 2, memory: 4Gi}
  oom_memory_factor: 1.5
""",
    "volumes": """\
volumes:
  - {claim: fileserver-claim, mount: /data, local: ../../demo-data}   # under edl run, /data means ../../demo-data
  - {host_path: /mnt/fast, mount: /scratch}
""",
    "storage": """\
storage: {claim: fileserver-claim, path: /data/runs}
""",
    "pod": """\
pod:
  env: {TF_CPP_MIN_LOG_LEVEL: "2"}
  node_selector: {kubernetes.io/arch: amd64}
  tolerations: [{key: team, operator: Equal, value: vision, effect: NoSchedule}]
  image_pull_secrets: [registry]
""",
    "security": """\
security: {run_as: {user: 2000, group: 2000}}
""",
}
"""By the top-level field that they are about; each is completed by the minimal file."""
