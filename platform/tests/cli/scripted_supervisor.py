"""``python -m edl.cluster.local`` with a scripted master: the same program with another command."""

import sys
from pathlib import Path

from edl.cluster.local.__main__ import main

MASTER = Path(__file__).with_name("scripted_master.py")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command=lambda role, index: [sys.executable, "-I", "-S", str(MASTER)]))
