"""`./dev chaos [pytest args]`: kills and stops each part of a running site, and checks Slurm's own records afterwards.

These are the tests marked `chaos`: they take minutes each and want the machine for themselves.
"""

from __future__ import annotations

import subprocess
import sys

WORDS = ("-m", "chaos", "--durations=15", "tests/integration")


def main() -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *WORDS, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
