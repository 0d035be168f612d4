"""``python -m edl.local`` with fake roles: the same program with another command."""

import sys
from pathlib import Path

from edl.local.__main__ import main

ROLE = Path(__file__).with_name("fake_role.py")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command=lambda role, index: [sys.executable, "-I", "-S", str(ROLE)]))
