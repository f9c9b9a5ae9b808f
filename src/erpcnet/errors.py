"""The one exception that a user may meet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class InputError(ValueError):
    """Something a person gave is wrong: one sentence that names it and says what to do.

    The command line prints the sentence and exits with code 2, without a traceback.
    """


class ProblemsError(InputError):
    """Several things that a person gave are wrong; `data check` tells all of them.

    Attributes:
        problems: A sentence each.
    """

    def __init__(self, problems: Sequence[str], command: str) -> None:
        self.problems = tuple(problems)
        more = len(problems) - 1
        rest = f" And {more} more {'problem' if more == 1 else 'problems'}; `{command}` lists all." if more else ""
        super().__init__(f"{problems[0]}{rest}")


class MissingImagesError(InputError):
    """Images that a list names are not in the folder; `data check` tells all of them."""

    def __init__(self, root: Path, missing: Sequence[str], source: str = "") -> None:
        self.missing, self.source = tuple(missing), source
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        super().__init__(
            f"{root}: image '{missing[0]}'{more} is not there, under that or another image ending; "
            f"put the images anywhere below {root} (`erpcnet data check {root}` lists what is missing)."
            + (f" {source}" if source else "")
        )
