"""The model of ElasticDL's tutorial, with a pause after each step: the tutorial's command line says nothing of a pace.

In the image under test it has the place of the zoo's own module, which is `unpaced` there. The pause ends once the test
has seen what it wanted (`finish_quickly`).
"""

from model_zoo.mnist.unpaced import custom_model, eval_metrics_fn, feed, loss, optimizer
from paced import PaceCallback

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def callbacks():
    return [PaceCallback(0.7, "/data/hurry-test-mnist", 0)]
