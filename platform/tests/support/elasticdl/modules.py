"""What becomes of each module of ElasticDL's model zoo that defines a Keras model.

The modules in ``model_zoo`` beside this file are our own. They have the same paths, imports and definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ZOO = Path(__file__).with_name("model_zoo")
DEEPCTR = "deepctr 0.9.4"


@dataclass(frozen=True)
class Module:
    """A module, and what is expected of it.

    Attributes:
        path: of the file below the zoo; the job's definition is made from it.
        data: name of a data set, see ``run_modules``.
        keras: the version of Keras that it needs.
        name: of the function or class in it that is the model.
        needs: a package that it imports, and that EDL's tests do not install.
        refused_locally: a part of the message of strategy Local; empty if it trains.
        is_large: whether tracing it takes longer than all others together take.
    """

    path: str
    data: str
    keras: int
    name: str = "custom_model"
    needs: str = ""
    refused_locally: str = ""
    is_large: bool = False

    @property
    def definition(self) -> str:
        return f"{self.path.removesuffix('.py').replace('/', '.')}.{self.name}"

    @property
    def row(self) -> str:
        """The row of the table in the documents."""
        result = "trains" + (f", with {self.needs}" if self.needs else "")
        if self.refused_locally:
            result += f" with parameter servers; otherwise refused: {self.refused_locally}"
        return f"| `{self.path}` | {self.keras} | {result} |"


MODULES = (
    Module("census_dnn_model/census_functional_api.py", "census", 2),
    Module("census_dnn_model/census_sequential.py", "census", 2),
    Module("census_dnn_model/census_subclass.py", "census", 2),
    Module("census_model_sqlflow/dnn/census_functional.py", "census_table", 2),
    Module("census_model_sqlflow/wide_and_deep/wide_deep_functional_fc.py", "census_table", 2),
    Module("census_model_sqlflow/wide_and_deep/wide_deep_functional_keras.py", "census_table", 2),
    Module("census_model_sqlflow/wide_and_deep/wide_deep_functional_tensor_interface_fc.py", "census_table", 2),
    Module("census_model_sqlflow/wide_and_deep/wide_deep_functional_tensor_interface_keras.py", "census_table", 2),
    Module("census_model_sqlflow/wide_and_deep/wide_deep_subclass_keras.py", "census_table", 3),
    Module("census_wide_deep_model/wide_deep_functional_api.py", "census", 2),
    Module("cifar10/cifar10_functional_api.py", "cifar10", 3),
    Module("cifar10/cifar10_mobilenetv2.py", "cifar10", 3, is_large=True),
    Module("cifar10/cifar10_resnet50.py", "cifar10", 3, is_large=True),
    Module("cifar10/cifar10_subclass.py", "cifar10", 3, name="CustomModel"),
    Module("dac_ctr/elasticdl_train.py", "clicks", 2, needs=DEEPCTR),
    Module("deepctr/wdl.py", "clicks", 2, needs=DEEPCTR),
    Module(
        "deepfm_edl_embedding/deepfm_edl_embedding.py",
        "frappe",
        2,
        refused_locally="only an EDL job with strategy ParameterServer can train it",
    ),
    Module("deepfm_functional_api/deepfm_functional_api.py", "frappe", 2),
    Module("heart_functional_api/heart_functional_api.py", "heart", 2),
    Module("mnist/mnist_functional_api.py", "mnist", 3),
    Module("mnist/mnist_subclass.py", "mnist", 3, name="CustomModel"),
    Module("odps_iris_dnn_model/odps_iris_dnn_model.py", "iris_table", 3),
    Module("resnet50_subclass/resnet50_subclass.py", "cifar10", 2, name="CustomModel"),
)
