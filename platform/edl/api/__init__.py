"""What the rooms of EDL say to each other, as typed values: the lowest layer, which everything may import.

Definitions only. Nothing here reads a file or YAML, looks at the time, or decides anything; only the standard
library's ``typing``, ``dataclasses`` and the like are imported. ``.importlinter`` checks this.
"""
