"""The tables of the page for ElasticDL's users, in ``docs/migrating-from-elasticdl.md``: flags, modules, imports.

What becomes of a flag comes from the command's own table. By hand are the order of the rows, remarks, and what to
write where a flag is no field. Modules and imports are those that tests run.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edl.cli.elasticdl.flags import EXTRA_FLAGS, JOB_FLAGS, RETIRED_FLAGS, ZOO_FLAGS, BecomesFields, Effect, Renamed

PAGE = Path(__file__).resolve().parents[1] / "migrating-from-elasticdl.md"
TESTS = Path(__file__).resolve().parents[2] / "platform/tests"
_BLOCK = "<!-- {0}: written by `make reference` -->\n\n{1}\n\n<!-- end of {0} -->"


@dataclass(frozen=True, slots=True)
class Row:
    """Flags with one meaning.

    Attributes:
        flags: their names, separated by spaces.
        remark: the last cell.
        written: what to write, where it is not the fields that the command ``elasticdl`` sets.
    """

    flags: str
    remark: str
    written: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One table."""

    title: str
    rows: tuple[Row, ...]
    introduction: str = ""


GROUPS = (
    Group(
        "The job and its data",
        (
            Row("job_name", ""),
            Row("image_name", "one image for all roles"),
            Row(
                "worker_image ps_image",
                "not needed: all roles run the same image, so their versions agree",
                written="`image`",
            ),
            Row(
                "namespace",
                "default: the kubeconfig's namespace, for the command `elasticdl`, too",
                written="`edl submit --namespace`",
            ),
            Row(
                "training_data",
                "RecordIO, CSV, or another [format](bring-your-own-data.md); a file, a directory, or a list. For ODPS "
                "tables, write a `custom_data_reader`",
            ),
            Row("validation_data", ""),
            Row("prediction_data", ""),
            Row(
                "data_reader_params",
                'a mapping instead of `"a=1; b=2"`; `label_col` is `label`, `reader_type` is `format`',
            ),
            Row("minibatch_size", ""),
            Row("num_minibatches_per_task", "default 64, in ElasticDL 8"),
            Row("num_epochs", ""),
            Row("max_step", "also replaces the callback `MaxStepsStopping`"),
            Row("evaluation_steps", "without it, one evaluation at the end"),
            Row("log_loss_steps", "default: off. The master always logs the loss, every 5 seconds"),
            Row(
                "tensorboard_log_dir",
                ("not in this version. A Keras `TensorBoard` callback in `callbacks()` writes each worker's own steps"),
            ),
            Row(
                "output",
                "a directory, with a `.keras` file and a SavedModel; without it, the command `elasticdl` writes no "
                "model. Also replaces the callback `SavedModelExporter`",
            ),
        ),
    ),
    Group(
        "The model",
        (
            Row("model_zoo", "`/model_zoo` in an image from `edl zoo build`"),
            Row("model_def", "the same text"),
            Row("model_params", 'a mapping instead of `"a=1; b=2"`'),
            Row(
                "feed loss optimizer callbacks eval_metrics_fn custom_data_reader prediction_outputs_processor",
                (
                    "only for functions with other names than those of the [contract](model-contract.md): "
                    "`{loss: my_loss}`"
                ),
            ),
        ),
    ),
    Group(
        "Strategy",
        (
            Row(
                "distribution_strategy",
                (
                    "`ParameterServerStrategy` is `ParameterServer`, `Local` is `Local`. `AllreduceStrategy` is"
                    " `AllReduce`. `CustomStrategy`: not in this version"
                ),
            ),
            Row("use_async", "default `async`; ElasticDL without the flag used `sync`"),
            Row(
                "grads_to_wait",
                (
                    "with `sync` only. So many pushes are one update, or as many as the running workers can "
                    "send, so a job with fewer workers goes on. Gradients are weighted by records"
                ),
            ),
            Row(
                "sync_version_tolerance",
                ("with `sync` only. A rejected minibatch is computed again at once, and is rejected once at most"),
            ),
            Row("lr_staleness_modulation", "with `async` only, as in ElasticDL"),
            Row(
                "get_model_steps",
                (
                    "with `async` only. Between two pulls, a worker updates its copy of the dense values with "
                    "the job's optimizer. Embedding rows are pulled for every minibatch"
                ),
            ),
        ),
    ),
    Group(
        "Roles and their pods",
        (
            Row(
                "num_workers",
                (
                    "with fewer than `workers.min` workers, the job is reported as "
                    "[starved](glossary.md#starved). `edl scale --max` changes the maximum while the job runs"
                ),
            ),
            Row("num_ps_pods", ""),
            Row("master_resource_request", "`cpu=2,memory=2048Mi` is `{cpu: 2, memory: 2Gi}`"),
            Row("worker_resource_request", "`disk`: `workers.resources.ephemeral_storage`"),
            Row("ps_resource_request", ""),
            Row(
                "master_resource_limit",
                ("default: the limit of memory is the request, and CPU has none, so that pods can use idle cores"),
            ),
            Row("worker_resource_limit", "the same; EDL has one amount of disk, and one of GPUs, for both"),
            Row("ps_resource_limit", "the same"),
            Row("master_pod_priority", "default `high`"),
            Row("ps_pod_priority", "default `high`"),
            Row("worker_pod_priority", "default `low`; `high=0.5` means the same as in ElasticDL"),
            Row(
                "volume",
                "a list instead of `;`",
                written="`volumes[].claim`, `volumes[].host_path`, `volumes[].mount`, `volumes[].sub_path`",
            ),
            Row("envs", "a mapping"),
            Row(
                "populate_env_names",
                (
                    "every pod gets the same variables. The command copies those of the machine where you "
                    "submit; secrets belong in a Secret, which `pod.env` can name"
                ),
            ),
            Row("image_pull_policy", "default: Kubernetes' own rule (`Always` for the tag `latest`)"),
            Row("restart_policy", "not needed: the master replaces pods, and Kubernetes replaces the master"),
            Row(
                "cluster_spec cluster_spec_json",
                (
                    "YAML instead of a Python module, also with `pod.node_selector`, `pod.tolerations`, "
                    "`pod.affinity`, `pod.labels` and `pod.annotations`. `edl render` shows the result"
                ),
                written=(
                    "`pod.overrides`, `master.overrides`, `ps.overrides`, `workers.overrides`, "
                    "`master.service_overrides`"
                ),
            ),
            Row(
                "chief_resource_request chief_resource_limit chief_pod_priority",
                "not needed: there is no chief, all workers are equal",
            ),
            Row(
                "num_evaluators evaluator_resource_request evaluator_resource_limit evaluator_pod_priority",
                "not needed: workers evaluate between their training tasks",
            ),
        ),
    ),
    Group(
        "Faults",
        (
            Row(
                "relaunch_on_worker_failure",
                (
                    "not needed: EDL replaces lost workers without a limit. Six crashes with almost no work "
                    "between them end the job"
                ),
            ),
            Row(
                "ps_relaunch_max_num ps_is_critical",
                ("not needed: a lost parameter server is replaced, and the job goes back to the last checkpoint"),
            ),
            Row("critical_worker_index", "not needed: no worker is critical"),
            Row("launch_worker_after_ps_running", "not needed: workers wait for the parameter servers"),
            Row(
                "relaunch_timeout_worker",
                (
                    "not needed: always on. A worker without progress loses its [lease](glossary.md#lease) to "
                    "another one"
                ),
            ),
            Row("task_fault_tolerance", "not needed: always on"),
            Row("enable_automate_memory", "the successor of a worker that ran out of memory requests more"),
            Row("aux_params", "not needed: `disable_relaunch` was for debugging. Use `strategy.name: Local`"),
        ),
    ),
    Group(
        "Checkpoints",
        (
            Row(
                "checkpoint_steps",
                (
                    "default 1000. `checkpoint: null` keeps only the checkpoints of step 0 and of the end, so "
                    "`--resume` or the loss of the only parameter server loses all training since the start"
                ),
            ),
            Row("keep_checkpoint_max", "default 3; keeping all is not possible"),
            Row(
                "checkpoint_dir",
                "also holds journal and logs. Default on a cluster: the first volume",
                written="`storage.claim`, `storage.path`",
            ),
            Row(
                "checkpoint_dir_for_init",
                (
                    "the weights that a job begins to train with, or evaluates or predicts with. `edl submit "
                    "--resume` resumes a run of the same job, with its record accounting"
                ),
            ),
        ),
    ),
    Group(
        "The client",
        (
            Row("yaml", "prints the manifests", written="`edl render`"),
            Row(
                "force_use_kube_config_file",
                (
                    "not needed: EDL uses `KUBECONFIG` or `~/.kube/config` if there is one, else the pod's "
                    "account. `edl submit --context` selects a context"
                ),
            ),
            Row("log_level", "`debug`, `info`, `warning` or `error`"),
            Row(
                "log_file_path",
                (
                    "not needed: the run's directory on the volume has the logs of all roles. `edl logs "
                    "--stored` reads them"
                ),
            ),
            Row("base_image", "", written="`edl zoo build --base`"),
            Row("image", "", written="`edl zoo build --image`"),
            Row(
                "extra_pypi_index local_pkg_dir",
                (
                    "takes your own Dockerfile. Without one, EDL installs a zoo's `requirements.txt`, which may name "
                    "an index"
                ),
                written="`edl zoo build --file`",
            ),
            Row(
                "docker_base_url docker_tlscert docker_tlskey",
                "not needed: use the Docker engine's `DOCKER_HOST` and `DOCKER_CERT_PATH`",
            ),
            Row(
                "job_command",
                (
                    "a list of words instead of a text. No shell runs it. The program gets its records from "
                    "`edl.sharding` instead of `elasticai_api`: see [programs of your own](programs.md)"
                ),
            ),
            Row("need_elasticdl_job_service", "not needed: a program always gets its records from the job's master"),
            Row("need_task_manager need_pod_manager", "not needed: a job always has both, in its master"),
            Row("need_tf_config", "not in EDL: workers come and go, and `TF_CONFIG` would be wrong at once"),
            Row(
                "custom_training_loop",
                "for a Keras model, the training loop is EDL's own, and callbacks see every step. With a loop of your "
                "own, the job is a [program](programs.md)",
                written="",
            ),
        ),
    ),
    Group(
        "Arguments of roles",
        (
            Row(
                "port master_addr ps_addrs ps_id worker_id job_type",
                "not needed: ports are fixed, and the master assigns indexes and addresses",
            ),
            Row(
                "opt_type opt_args",
                "not needed: the first worker declares the model's optimizer to the parameter servers",
            ),
            Row("collective_communicator_service_name", "not needed"),
        ),
        (
            "ElasticDL starts its roles with these; users do not set them. A role of EDL reads one "
            "file, the resolved job file, and gets everything else from the master."
        ),
    ),
    Group(
        "Flags of older versions",
        (
            Row("dataset_fn input_fn", "the function is called `feed`", written=""),
            Row("model_class model_file", "", written="`model.definition`"),
            Row("records_per_task", "in minibatches"),
            Row("training_data_dir", ""),
            Row("evaluation_data_dir", ""),
            Row("prediction_data_dir", ""),
            Row("checkpoint_filename_for_init", ""),
            Row(
                "evaluation_start_delay_secs evaluation_throttle_secs",
                "in steps, because seconds depend on the number of workers",
                written="`train.evaluation_steps`",
            ),
            Row(
                "learning_rate_scheduler",
                ("use a Keras schedule as the optimizer's learning rate. Workers evaluate it at the global step"),
            ),
            Row(
                "image_base docker_image_prefix docker_image_repository",
                "building an image and submitting a job are two commands",
                written="`edl zoo build --base`, `edl zoo build --image`",
            ),
            Row("use_go_ps embedding_service_endpoint codec_type codec_file", "not needed"),
            Row("all", "an option of `elasticdl clean`; remove images with the Docker engine"),
        ),
    ),
)


def page(text: str) -> str:
    """The page with its tables as they are now."""
    for name, table in (("flags", _flag_tables()), ("modules", _module_table()), ("imports", _import_table())):
        pattern = re.compile(re.escape(_BLOCK.format(name, "\0")).replace("\0", ".*?"), re.DOTALL)
        text, count = pattern.subn(lambda _, name=name, table=table: _BLOCK.format(name, table), text)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the table of {name}")
    return text


def _flag_tables() -> str:
    return "\n\n".join("\n\n".join(_group_parts(group)) for group in GROUPS)


def _group_parts(group: Group) -> Iterator[str]:
    yield f"### {group.title}"
    if group.introduction:
        yield textwrap.fill(group.introduction, 100)
    yield _table(("ElasticDL", "EDL", "remarks"), (_flag_cells(row) for row in group.rows))


def _flag_cells(row: Row) -> tuple[str, str, str]:
    names = row.flags.split()
    fields = dict.fromkeys(field for name in names for field in _fields_of(name))
    written = ", ".join(f"`{field}`" for field in fields) if row.written is None else row.written
    return ", ".join(f"`--{name}`" for name in names), written, row.remark


def _fields_of(name: str) -> Iterator[str]:
    """The fields that the command sets for a flag."""
    for effect in _effects_of(name):
        if isinstance(effect, BecomesFields):
            yield from (re.sub(r"^model\.functions\..*", "model.functions", field) for field in effect.fields)


def _effects_of(name: str) -> Iterator[Effect]:
    for retired in RETIRED_FLAGS:
        if retired.name == name and isinstance(retired.effect, Renamed):
            yield from _effects_of(retired.effect.name)
    yield from (flag.effect for flag in (*JOB_FLAGS, *EXTRA_FLAGS, *ZOO_FLAGS) if flag.name == name)


def _module_table() -> str:
    sys.path.insert(0, str(TESTS))
    try:
        from support.elasticdl.modules import MODULES
    finally:
        sys.path.remove(str(TESTS))
    return "\n".join(["| module | Keras | result |", "|---|---|---|", *(module.row for module in MODULES)])


def _import_table() -> str:
    sys.path.insert(0, str(TESTS))
    try:
        from support.elasticdl.imports import IMPORTS
    finally:
        sys.path.remove(str(TESTS))
    return _table(("import", "what it is"), ((f"`{each.module}`", each.what) for each in IMPORTS))


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in rows)])
