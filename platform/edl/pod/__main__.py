"""``python -m edl.pod``: the same as ``edl-role``."""

from __future__ import annotations

import sys

from edl.pod.entry import main

if __name__ == "__main__":
    sys.exit(main())
