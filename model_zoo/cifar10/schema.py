"""The form of CIFAR-10's images."""

SIDE, CHANNELS = 32, 3
