"""``python -m edl.master``: the master process of one job."""

from __future__ import annotations

import sys

from edl.master.master_process import main

if __name__ == "__main__":
    sys.exit(main())
