"""`python -m trust.rank AT RANK NOTES COMMAND...`: a command of several processes, of which one dies at a moment.

AT counts the moments of the process of that RANK below the folder that --out names; with -1 nobody dies, and every
process notes its moments in the file NOTES of its rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trust.sabotage import Saboteur


def main() -> int:
    """Run the command."""
    at, rank, notes, *words = sys.argv[1:]
    own, folder = os.environ.get("RANK", "0"), Path(words[words.index("--out") + 1]).parent
    if int(at) < 0:
        Saboteur(folder, notes=Path(f"{notes}-{own}")).install()
    elif own == rank:
        Saboteur(folder, int(at)).install()
    from erpcnet.cli import main as command

    return command(words)


if __name__ == "__main__":
    sys.exit(main())
