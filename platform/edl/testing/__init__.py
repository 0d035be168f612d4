"""Virtual clock, fake cluster, fault injector: what tests and simulations stand on."""
