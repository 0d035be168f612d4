"""Command lines as ElasticDL's tutorials, README and CI have them, each with what becomes of it.

They have the forms and flags of those documents; names of registries and projects are examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DocumentedLine:
    """A command line.

    Attributes:
        name: where it is from, in short.
        text: as it would be typed into a shell.
        fields: values of the job file that it becomes, by path.
        says: words of printed lines.
        refusal: words of the error; empty: it runs.
    """

    name: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    refusal: tuple[str, ...] = ()


_MNIST = "--model_zoo=model_zoo --model_def=mnist.mnist_functional_api.custom_model"
_GKE = f"""elasticdl train --image_name=registry.example/project/elasticdl:mnist {_MNIST}
 --training_data=/data/mnist/train --validation_data=/data/mnist/test --num_epochs=5
 --master_resource_request="cpu=2,memory=2048Mi" --master_resource_limit="cpu=2,memory=2048Mi"
 --master_pod_priority=high
 --worker_resource_request="cpu=2,memory=2048Mi" --worker_resource_limit="cpu=2,memory=2048Mi"
 --worker_pod_priority=low
 --ps_resource_request="cpu=2,memory=2048Mi" --ps_resource_limit="cpu=2,memory=2048Mi" --ps_pod_priority=high
 --minibatch_size=64 --num_minibatches_per_task=64 --num_ps_pods=2 --num_workers=4 --evaluation_steps=200
 --grads_to_wait=1 --job_name=test-mnist --log_level=INFO --image_pull_policy=Always
 --volume="mount_path=/data,claim_name=fileserver-claim" --distribution_strategy=ParameterServerStrategy"""
_CI = """--num_epochs=1 --master_resource_request="cpu=0.3,memory=1024Mi" --master_resource_limit="cpu=1,memory=2048Mi"
 --worker_resource_request="cpu=0.4,memory=2048Mi" --worker_resource_limit="cpu=1,memory=3072Mi"
 --ps_resource_request="cpu=0.2,memory=1024Mi" --ps_resource_limit="cpu=1,memory=2048Mi" --minibatch_size=64
 --num_minibatches_per_task=2 --num_workers=2 --num_ps_pods=2 --log_level=INFO --image_pull_policy=Never"""
_HOST_DATA = '--volume="host_path=/home/ci,mount_path=/data"'
_IRIS = (
    """--data_reader_params='columns=["sepal_length", "sepal_width", "petal_length", "petal_width", "class"]; """
    """label_col="class"'"""
)
_PROGRAM = ("--training_data is missing", "edl.sharding")
"""Programs tell ElasticDL's master how many records they have; EDL's master reads the files."""
_OLD_CHECKPOINT = ("--checkpoint_dir_for_init=/model_zoo/test_data/mnist_ckpt/version-110", "ElasticDL")

LINES: tuple[DocumentedLine, ...] = (
    # ---------------------------------------------------------------- on this machine
    DocumentedLine(
        "local tutorial",
        "elasticdl train --model_def=mnist_functional_api.custom_model --training_data=/mnist/train --output=output",
        {
            "name": "mnist-functional-api",
            "strategy.name": "Local",
            "model.definition": "mnist_functional_api.custom_model",
            "model.zoo": ".",
            "data.training": ["/mnist/train"],
            "export.path": "output",
            "image": None,
        },
        ("--job_name is missing", "strategy Local"),
    ),
    DocumentedLine(
        "local tutorial, with evaluation",
        f"elasticdl train {_MNIST} --training_data=/data/mnist/train --validation_data=/data/mnist/test --num_epochs=1 "
        "--evaluation_steps=50 --minibatch_size=64 --num_minibatches_per_task=2 --job_name=test --image_name='' "
        "--distribution_strategy=Local",
        {"strategy.name": "Local", "train.evaluation_steps": 50, "train.minibatches_per_task": 2, "image": None},
    ),
    DocumentedLine(
        "local tutorial, older flags",
        f"elasticdl train {_MNIST} --training_data_dir=/data/mnist/train --evaluation_data_dir=/data/mnist/test "
        "--dataset_fn=feed --records_per_task=256 --job_name=test",
        {
            "data.training": ["/data/mnist/train"],
            "data.validation": ["/data/mnist/test"],
            "train.minibatches_per_task": 4,
        },
        ("--training_data_dir", "--evaluation_data_dir", "--dataset_fn", "--records_per_task"),
    ),
    DocumentedLine(
        "local prediction",
        f"elasticdl predict {_MNIST} --prediction_data=/data/mnist/test --checkpoint_dir_for_init=model.keras "
        "--job_name=test-predict",
        {"task": "predict", "data.prediction": ["/data/mnist/test"], "model.weights": "model.keras", "image": None},
    ),
    DocumentedLine(
        "local evaluation",
        f"elasticdl evaluate {_MNIST} --validation_data=/data/mnist/test --checkpoint_dir_for_init=model.keras "
        "--job_name=test-evaluate",
        {"task": "evaluate", "data.validation": ["/data/mnist/test"], "model.weights": "model.keras"},
    ),
    # ---------------------------------------------------------------- minikube
    DocumentedLine(
        "minikube",
        f"elasticdl train --image_name=elasticdl:mnist {_MNIST} --training_data=/data/mnist/train "
        "--job_name=test-mnist "
        '--volume="host_path=/data,mount_path=/data"',
        {
            "name": "test-mnist",
            "image": "elasticdl:mnist",
            "strategy.name": "ParameterServer",
            "strategy.mode": "sync",
            "ps.count": 1,
            "workers.max": 2,
            "workers.resources.memory": 4 << 30,
            "master.resources.cpu": 0.1,
            "train.minibatches_per_task": 8,
            "volumes": [{"mount": "/data", "host_path": "/data"}],
            "pod.name_prefix": "elasticdl",
            "pod.image_pull_policy": "Always",
            "export": None,
        },
        ("--num_ps_pods",),
    ),
    DocumentedLine(
        "minikube, small nodes",
        f"""elasticdl train --image_name=elasticdl:mnist {_MNIST} --training_data=/data/mnist/train --num_epochs=1
 --master_resource_request="cpu=0.2,memory=1024Mi" --master_resource_limit="cpu=1,memory=2048Mi"
 --worker_resource_request="cpu=0.4,memory=1024Mi" --worker_resource_limit="cpu=1,memory=2048Mi"
 --ps_resource_request="cpu=0.2,memory=1024Mi" --ps_resource_limit="cpu=1,memory=2048Mi"
 --minibatch_size=64 --num_minibatches_per_task=2 --num_ps_pods=1 --num_workers=1 --checkpoint_steps=200
 --grads_to_wait=1 --job_name=test-mnist --log_level=INFO --image_pull_policy=Never
 --volume="host_path=/data,mount_path=/data" --distribution_strategy=ParameterServerStrategy""",
        {
            "master.resources.limits.cpu": 1.0,
            "workers.resources.limits.memory": 2 << 30,
            "checkpoint.every_steps": 200,
            "pod.image_pull_policy": "Never",
        },
    ),
    DocumentedLine(
        "minikube, asynchronous",
        f"elasticdl train --image_name=elasticdl:mnist {_MNIST} --training_data=/data/mnist/train "
        "--job_name=test-async "
        "--num_ps=1 --use_async --lr_staleness_modulation=True --get_model_steps=5 "
        '--volume="mount_path=/data,host_path=/data"',
        {
            "strategy.mode": "async",
            "strategy.staleness_aware": True,
            "strategy.get_model_steps": 5,
            "ps.count": 1,
        },
    ),
    # ---------------------------------------------------------------- GKE and other clouds
    DocumentedLine(
        "GKE",
        _GKE,
        {
            "name": "test-mnist",
            "master.priority": "high",
            "workers.priority": "low",
            "ps.count": 2,
            "workers.max": 4,
            "workers.min": 1,
            "strategy.grads_to_wait": 1,
            "train.evaluation_steps": 200,
            "workers.resources.cpu": 2.0,
            "workers.resources.limits.cpu": 2.0,
            "log": {"level": "info", "loss_every_steps": 100},
            "volumes": [{"mount": "/data", "claim": "fileserver-claim"}],
        },
    ),
    DocumentedLine("GKE, use_async", f"{_GKE} --use_async=true", {"strategy.mode": "async"}, ("--grads_to_wait",)),
    DocumentedLine(
        "GKE, half of the workers with high priority",
        f"{_GKE} --worker_pod_priority=high=0.5",
        {"workers.priority": "high=0.5"},
    ),
    DocumentedLine(
        "GKE, checkpoints and a model",
        f"{_GKE} --checkpoint_steps=500 --checkpoint_dir=/data/ckpt --keep_checkpoint_max=3 --output=/data/model",
        {
            "checkpoint.every_steps": 500,
            "checkpoint.keep": 3,
            "storage.path": "/data/ckpt",
            "export.path": "/data/model",
        },
    ),
    DocumentedLine(
        "GKE, model of a relative path",
        f"{_GKE} --output=model_output",
        {"export.path": "/data/model_output"},
        ("--output=model_output",),
    ),
    DocumentedLine("GKE, all log lines", f"{_GKE} --log_loss_steps=10", {"log.loss_every_steps": 10}),
    DocumentedLine(
        "GKE, several volumes",
        f'{_GKE} --volume="claim_name=c0,mount_path=/data;claim_name=c1,mount_path=/out,sub_path=team/a"',
        {"volumes": [{"mount": "/data", "claim": "c0"}, {"mount": "/out", "claim": "c1", "sub_path": "team/a"}]},
        ("--volume",),
    ),
    DocumentedLine(
        "GKE, GPUs",
        f'{_GKE} --worker_resource_request="cpu=4,memory=8192Mi,gpu=1" --worker_resource_limit="cpu=4,memory=8192Mi"',
        {"workers.resources.gpu": 1, "workers.resources.memory": 8 << 30},
    ),
    DocumentedLine(
        "environment with commas",
        f'{_GKE} --envs="MODE=fast,HOSTS=a,b"',
        {"pod.env": {"MODE": "fast", "HOSTS": "a,b"}},
    ),
    DocumentedLine(
        "cluster spec as JSON",
        f"""{_GKE} --cluster_spec_json='{{"pod_spec": {{"labels": {{"team": "a"}}}}}}'""",
        {"pod.overrides": {"metadata": {"labels": {"team": "a"}}}},
    ),
    DocumentedLine(
        "weights of another job",
        f"{_GKE} --checkpoint_dir_for_init=/data/ckpt/version-100",
        {"model.init_from": "/data/ckpt/version-100"},
    ),
    DocumentedLine(
        "weights of another job, below the first volume",
        f"{_GKE} --checkpoint_dir_for_init=ckpt/version-100",
        {"model.init_from": "/data/ckpt/version-100"},
        ("--checkpoint_dir_for_init", "/data/ckpt/version-100"),
    ),
    DocumentedLine(
        "weights of a checkpoint that no volume has",
        f"{_GKE} --checkpoint_dir_for_init=/ckpt/version-100",
        refusal=("--checkpoint_dir_for_init", "ElasticDL"),
    ),
    DocumentedLine(
        "weights of another job of EDL",
        f"{_GKE} --checkpoint_dir_for_init=pretrained",
        {"model.init_from": "pretrained"},
    ),
    # ---------------------------------------------------------------- AllReduce and programs
    DocumentedLine(
        "AllReduce with a Keras model",
        f"elasticdl train --image_name=elasticdl:allreduce {_MNIST} --training_data=/data/mnist/train --num_epochs=1 "
        "--minibatch_size=64 --num_minibatches_per_task=2 --num_workers=2 --num_ps_pods=0 "
        '--worker_resource_request="cpu=0.3,memory=1024Mi" --job_name=test-mnist-allreduce --image_pull_policy=Never '
        f"--distribution_strategy=AllreduceStrategy {_HOST_DATA}",
        {"strategy.name": "AllReduce", "workers.max": 2},
        ("--num_ps_pods=0",),
    ),
    DocumentedLine(
        "AllReduce with PyTorch",
        'elasticdl train --image_name=elasticdl:pytorch --job_command="python -m model_zoo.mnist.mnist_pytorch '
        '--training_data=/data/mnist/train" --num_minibatches_per_task=2 --num_workers=2 --job_name=test-mnist '
        "--distribution_strategy=AllreduceStrategy --need_elasticdl_job_service=true",
        refusal=_PROGRAM,
    ),
    DocumentedLine(
        "AllReduce with TensorFlow 2 in a loop of its own",
        "elasticdl train --image_name=elasticdl:allreduce --model_zoo=model_zoo "
        "--model_def=mnist.mnist_train_tfv2.train "
        "--training_data=/data/mnist/train --custom_training_loop=true --job_name=test-mnist --num_workers=2 "
        "--distribution_strategy=AllreduceStrategy",
        refusal=("--custom_training_loop", "--job_command"),
    ),
    DocumentedLine(
        "Estimator",
        'elasticdl train --image_name=elasticdl:iris --job_command="python -m model_zoo.iris.dnn_estimator" '
        "--num_ps_pods=1 --num_workers=1 --num_evaluator=1 --job_name=test-iris-estimator --need_tf_config=true "
        "--distribution_strategy=ParameterServerStrategy",
        refusal=("--need_tf_config", "edl.sharding"),
    ),
    DocumentedLine(
        "Estimator of DeepCTR",
        'elasticdl train --image_name=elasticdl:deepctr --job_command="python -m model_zoo.deepctr.deepfm_estimator '
        '--training_data=/data/ctr" --num_workers=1 --num_ps=1 --job_name=test-deepctr-estimator',
        refusal=(*_PROGRAM, "--training_data=/data/ctr"),
    ),
    DocumentedLine(
        "DeepCTR with Keras",
        "elasticdl train --image_name=elasticdl:deepctr --model_zoo=model_zoo --model_def=deepctr.wdl.custom_model "
        "--training_data=/data/criteo --volume='host_path=/data,mount_path=/data' --minibatch_size=64 "
        "--num_minibatches_per_task=100 --num_epochs=1 --num_workers=1 --num_ps_pods=1 --use_async=True "
        "--job_name=test-deepctr --log_loss_steps=5 --image_pull_policy=Never",
        {
            "model.definition": "deepctr.wdl.custom_model",
            "train.minibatches_per_task": 100,
            "log.loss_every_steps": 5,
        },
    ),
    DocumentedLine(
        "strategy of one's own",
        "elasticdl train --image_name=elasticdl:own --model_def=m.custom_model --job_name=own "
        "--training_data=/data --distribution_strategy=CustomStrategy",
        refusal=("--distribution_strategy=CustomStrategy", "ParameterServerStrategy"),
    ),
    # ---------------------------------------------------------------- CI
    DocumentedLine(
        "CI, train",
        f"elasticdl train --image_name=elasticdl:ci_mnist {_MNIST} --training_data=/data/mnist/train "
        f"--validation_data=/data/mnist/test {_CI} --checkpoint_steps=500 --evaluation_steps=15 --grads_to_wait=1 "
        f"--use_async=True --job_name=test-train --output=/data/saved_model/model_output {_HOST_DATA}",
        {"export.path": "/data/saved_model/model_output", "master.resources.cpu": 0.3},
        ("--grads_to_wait=1",),
    ),
    DocumentedLine(
        "CI, subclassed model",
        "elasticdl train --image_name=elasticdl:ci --model_zoo=model_zoo --model_def=mnist.mnist_subclass.CustomModel "
        f"--training_data=/data/mnist/train {_CI} --job_name=test-train {_HOST_DATA}",
        {"model.definition": "mnist.mnist_subclass.CustomModel"},
    ),
    DocumentedLine(
        "CI, evaluate",
        f"elasticdl evaluate --image_name=elasticdl:ci_mnist {_MNIST} --validation_data=/data/mnist/test "
        f"--checkpoint_dir_for_init=/model_zoo/test_data/mnist_ckpt/version-110 {_CI} --checkpoint_steps=500 "
        f"--evaluation_steps=15 --tensorboard_log_dir=/tmp/tensorboard-log --job_name=test-evaluate {_HOST_DATA}",
        refusal=_OLD_CHECKPOINT,
    ),
    DocumentedLine(
        "CI, evaluate what the job test-train has trained",
        f"elasticdl evaluate --image_name=elasticdl:ci_mnist {_MNIST} --validation_data=/data/mnist/test "
        f"--checkpoint_dir_for_init=test-train {_CI} --checkpoint_steps=500 --evaluation_steps=15 "
        f"--tensorboard_log_dir=/tmp/tensorboard-log --job_name=test-evaluate {_HOST_DATA}",
        {"task": "evaluate", "data.validation": ["/data/mnist/test"], "model.weights": "test-train"},
        ("--num_epochs", "--evaluation_steps", "--tensorboard_log_dir", "--num_ps_pods=2"),
    ),
    DocumentedLine(
        "CI, predict",
        f"elasticdl predict --image_name=elasticdl:ci_mnist {_MNIST} --prediction_data=/data/mnist/test "
        f"--checkpoint_dir_for_init=/model_zoo/test_data/mnist_ckpt/version-110 {_CI} --job_name=test-predict "
        f"{_HOST_DATA}",
        refusal=_OLD_CHECKPOINT,
    ),
    DocumentedLine(
        "CI, predict with an exported model",
        f"elasticdl predict --image_name=elasticdl:ci_mnist {_MNIST} --prediction_data=/data/mnist/test "
        f"--checkpoint_dir_for_init=/data/saved_model/model_output {_CI} --job_name=test-predict --output=out "
        f"{_HOST_DATA}",
        {"task": "predict", "data.prediction": ["/data/mnist/test"], "model.weights": "/data/saved_model/model_output"},
        ("--num_epochs", "--output=out"),
    ),
    DocumentedLine(
        "CI, table of MaxCompute",
        "elasticdl train --image_name=elasticdl:ci --model_zoo=model_zoo "
        f"--model_def=odps_iris_dnn_model.odps_iris_dnn_model.custom_model --training_data=iris_train_table {_CI} "
        f"{_IRIS} --envs='ODPS_PROJECT_NAME=p,ODPS_ACCESS_ID=i,ODPS_ACCESS_KEY=k' --job_name=test-odps {_HOST_DATA}",
        refusal=("--training_data=iris_train_table", "CSV", "custom_data_reader"),
    ),
    DocumentedLine(
        "iris from CSV files",
        "elasticdl train --image_name=elasticdl:ci --model_zoo=model_zoo "
        f"--model_def=odps_iris_dnn_model.odps_iris_dnn_model.custom_model --training_data=/data/iris.csv {_IRIS} "
        f"--job_name=test-iris {_HOST_DATA}",
        {
            "data.reader": {
                "columns": ["sepal_length", "sepal_width", "petal_length", "petal_width", "class"],
                "label": "class",
            }
        },
    ),
    DocumentedLine(
        "census with names of functions",
        "elasticdl train --image_name=elasticdl:census --model_zoo=model_zoo "
        "--model_def=census_dnn_model.census_functional_api.custom_model --training_data=/data/census "
        f"--feed=feed --loss=loss --optimizer=my_optimizer --eval_metrics_fn=eval_metrics_fn "
        f"--job_name=census {_HOST_DATA}",
        {"model.functions": {"optimizer": "my_optimizer"}},
    ),
    DocumentedLine(
        "parameters of the model",
        "elasticdl train --image_name=elasticdl:dac --model_zoo=model_zoo "
        "--model_def=dac_ctr.elasticdl_train.custom_model "
        f"--model_params='model_name=\"deepfm\"; units=[64, 16]' --training_data=/data/dac --job_name=dac {_HOST_DATA}",
        {"model.params": {"model_name": "deepfm", "units": [64, 16]}},
    ),
    # ---------------------------------------------------------------- before images had commands of their own
    DocumentedLine(
        "README of 2019",
        f"elasticdl train --image_base=elasticdl:ci --docker_image_repository=registry.example/project {_MNIST} "
        "--training_data_dir=/data/mnist/train --records_per_task=100 --job_name=test",
        refusal=("--image_base", "--docker_image_repository", "elasticdl zoo build"),
    ),
    DocumentedLine(
        "model of a file and a class",
        "elasticdl train --model_file=mnist.py --model_class=Mnist --training_data=/data --job_name=test",
        refusal=("--model_class", "--model_def=MODULE.FUNCTION"),
    ),
    DocumentedLine("clean", "elasticdl clean --docker_image_repository=r --all", refusal=("edl delete",)),
)

ZOO_LINES = (
    "elasticdl zoo init",
    "elasticdl zoo init --model_zoo=model_zoo",
    "elasticdl zoo init --base_image=python:3.6 --extra_pypi_index=http://index.example/simple --model_zoo=model_zoo",
    "elasticdl zoo init --base_image=elasticdl:dev_allreduce --model_zoo=model_zoo --local_pkg_dir=wheels",
    "elasticdl zoo init --base_image=registry.example/edl:gpu --cluster_spec=spec.py",
)
