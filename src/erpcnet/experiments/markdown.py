"""Tables of Markdown, and the places of pages that they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)


def fill(page: Path, marker: str, text: str) -> None:
    """Put generated text between `<!-- marker -->` and `<!-- /marker -->` of a page."""
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
    _, end, after = rest.partition(f"<!-- /{marker} -->")
    if not start or not end:
        raise ValueError(f"{page} has no place for {marker}")
    page.write_text(f"{before}{start}{text}\n{end}{after}", encoding="utf-8")
