"""Constants that model modules compare with or use as keys."""

from __future__ import annotations

from elasticdl_compat.missing_names import explain_missing_names


class Mode:
    """What ``feed`` is called for. The values equal EDL's."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


class JobType:
    """Kinds of jobs."""

    TRAINING_ONLY = "training_only"
    EVALUATION_ONLY = "evaluation_only"
    PREDICTION_ONLY = "prediction_only"
    TRAINING_WITH_EVALUATION = "training_with_evaluation"


class MetricsDictKey:
    """Keys of a dict of a model's output and labels."""

    MODEL_OUTPUT = "output"
    LABEL = "label"


class DistributionStrategy:
    """Names of strategies on ElasticDL's command line."""

    LOCAL = "Local"
    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"


class MaxComputeConfig:
    """Environment variables of the access to MaxCompute tables, which EDL does not have."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


__getattr__ = explain_missing_names(__name__)
