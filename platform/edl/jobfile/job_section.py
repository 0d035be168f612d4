"""The top level of a job file: its version, and suggestions for fields that have another name in another system."""

from __future__ import annotations

from collections.abc import Mapping

from edl.api.job_spec import API_VERSION, JobSpec
from edl.jobfile.document_tree import normalize_spelling
from edl.jobfile.section_type import SectionType

# --------------------------------------------------------------------------------------------------
# Names of fields in other systems, mostly ElasticDL's flags, and the field of a job file that corresponds to each.


FIELD_ALIASES: Mapping[str, str] = {
    "batch_size": "train.minibatch_size",
    "checkpoint_steps": "checkpoint.every_steps",
    "data_reader_params": "data.reader",
    "distribution_strategy": "strategy.name",
    "image_name": "image",
    "job_name": "name",
    "keep_checkpoint_max": "checkpoint.keep",
    "max_step": "train.max_steps",
    "model_def": "model.definition",
    "model_params": "model.params",
    "model_zoo": "model.zoo",
    "num_epochs": "train.epochs",
    "num_minibatches_per_task": "train.minibatches_per_task",
    "num_ps": "ps.count",
    "num_ps_pods": "ps.count",
    "num_workers": "workers.max",
    "output": "export.path",
    "parameter_servers": "ps.count",
    "prediction_data": "data.prediction",
    "ps_count": "ps.count",
    "training_data": "data.training",
    "use_async": "strategy.mode",
    "validation_data": "data.validation",
}
"""Field of a job file by its name elsewhere. A field of the same name one level down needs no entry here."""
FUNCTION_ALIASES: Mapping[str, str] = {
    "callbacks": "callbacks",
    "custom_data_reader": "custom_data_reader",
    "eval_metrics_fn": "eval_metrics_fn",
    "feed": "feed",
    "learning_rate": "optimizer",
    "loss": "loss",
    "metrics": "eval_metrics_fn",
    "optimizer": "optimizer",
}
"""Settings that are code in EDL, and the function of the model module that corresponds to each."""

_NORMALIZED_FIELDS = {normalize_spelling(name): field for name, field in FIELD_ALIASES.items()}
_NORMALIZED_FUNCTIONS = {normalize_spelling(name): function for name, function in FUNCTION_ALIASES.items()}


def suggest_replacement(name: str) -> str | None:
    """What to write instead of an unknown field, phrased to follow a semicolon; None if the name is not known here."""
    if field := _NORMALIZED_FIELDS.get(normalize_spelling(name)):
        return f"did you mean '{field}'?"
    if function := _NORMALIZED_FUNCTIONS.get(normalize_spelling(name)):
        return f"it belongs in the model module, as the function {function}() (see the model contract)"
    return None


JOB_SECTION = SectionType(JobSpec, constants=(("apiVersion", API_VERSION),), suggest_replacement=suggest_replacement)
