"""What model modules of ElasticDL import, and what it is here: the table of the migration page, which tests run."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Import:
    """A module that is there.

    Attributes:
        module: its name.
        what: what is in it, in the words of the page; each name is in backquotes.
    """

    module: str
    what: str

    @property
    def names(self) -> list[str]:
        """The names that the module has."""
        return re.findall(r"`(\w+)`", self.what)


IMPORTS = (
    Import(
        "elasticdl.python.common.constants",
        "`Mode`, `JobType`, `MetricsDictKey`, `DistributionStrategy`, `MaxComputeConfig`",
    ),
    Import(
        "elasticdl.python.common.log_utils",
        "`default_logger`, `get_logger`",
    ),
    Import(
        "elasticdl.python.data.odps_io",
        "`is_odps_configured` works; `ODPSReader` and `ODPSWriter` raise an error when used",
    ),
    Import(
        "elasticdl.python.data.reader.data_reader",
        "`AbstractDataReader`, `Metadata`",
    ),
    Import(
        "elasticdl.python.data.reader.recordio_reader",
        "`RecordIODataReader`",
    ),
    Import(
        "elasticdl.python.data.reader.odps_reader",
        "`ODPSDataReader` raises an error when used",
    ),
    Import(
        "elasticdl.python.elasticdl.callbacks",
        "`LearningRateScheduler`; `MaxStepsStopping` (with parameter servers, records that workers hold are still "
        "trained; `train.max_steps` is exact); `SavedModelExporter` raises an error when used",
    ),
    Import(
        "elasticdl.python.elasticdl.layers.embedding",
        "`Embedding`, which is "
        "[`edl.layers.Embedding`](concepts/embeddings.md#several-ids-in-a-record-edllayersembedding)",
    ),
    Import(
        "elasticdl.python.elasticdl.feature_column.feature_column",
        "`embedding_column` of TensorFlow",
    ),
    Import(
        "elasticdl.python.worker.prediction_outputs_processor",
        "`BasePredictionOutputsProcessor`",
    ),
    Import(
        "elasticdl_preprocessing.layers",
        "`ConcatenateWithOffset`, `Discretization`, `Hashing`, `IndexLookup`, `LogRound`, `Normalizer`, "
        "`RoundIdentity`, `SparseEmbedding` (also called `Embedding`), `ToNumber`, `ToRagged`, `ToSparse`",
    ),
    Import(
        "elasticdl_preprocessing.feature_column.feature_column",
        "`concatenated_categorical_column`",
    ),
    Import(
        "elasticdl_preprocessing.utils",
        "`decorators.declare_model_inputs`, `analyzer_utils`",
    ),
    Import(
        "recordio",
        "`Writer`, `Index`, `Scanner`",
    ),
)
