"""Pages of the site that are files of the repository's root."""

from pathlib import Path
from typing import Any

PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The file in place of the page, its links as seen from docs/."""
    name = PAGES.get(page.file.src_uri)
    if name is None:
        return markdown
    text = Path(name).read_text(encoding="utf-8").replace("](docs/", "](")
    for own, file in PAGES.items():
        text = text.replace(f"]({file})", f"]({own})")
    return text
