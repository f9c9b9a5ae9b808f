"""A page of text, tables and pictures, as Markdown beside its pictures and as one HTML file that holds them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from erpcnet.experiments.markdown import markdown_table

STYLE = """
:root { color-scheme: light dark; --line: #8885; --quiet: #5d6675; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
nav a { margin-right: 1rem; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; border-bottom: 1px solid var(--line); }
figure { margin: 1rem 0; } figcaption { color: var(--quiet); font-size: .9rem; }
.slider { margin: 1rem 0; } .slider input { width: min(24rem, 100%); vertical-align: middle; }
output { font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 100%; height: auto; background: #fff; border-radius: .3rem; }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #9aa4b2; } body { background: #14181f; color: #e6e9ef; } a { color: #8db8ff; } }
"""
SHOWN_PLACES = 8  # parts of a slider's range whose ends a table shows
SCRIPT = """
for (const box of document.querySelectorAll(".slider")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const range = box.querySelector("input"), output = box.querySelector("output");
  const tell = () => {
    const at = Number(range.value);
    const numbers = Object.entries(data.columns).map(([title, values]) => `${title} ${values[at].toFixed(1)}`);
    output.textContent = `${data.places[at].toFixed(2)}: ${numbers.join(", ")}`;
    range.setAttribute("aria-valuetext", output.textContent);
  };
  range.addEventListener("input", tell);
  tell();
}
"""


class Table(NamedTuple):
    """A table: its header and its rows, as texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """Its lines."""
        return markdown_table(self.header, self.rows)


class Picture(NamedTuple):
    """A picture: the file's name beside the page, and what is to be seen."""

    file: str
    caption: str

    def to_markdown(self) -> str:
        """The picture, and its caption below."""
        return f"![{self.caption}]({self.file})\n\n*{self.caption}*"


class Slider(NamedTuple):
    """Numbers that depend on one that a person moves; Markdown has a table of some places instead.

    Attributes:
        name: What is moved.
        places: Where it can stand, ascending.
        columns: For each number its name, and what it is at each place, in per cent.
        start: Where it stands first, one of the places.
    """

    name: str
    places: Sequence[float]
    columns: Mapping[str, Sequence[float]]
    start: float

    def to_markdown(self) -> str:
        """A table of the start and of some places over the whole range."""
        last = len(self.places) - 1
        shown = sorted({*(round(last * part / SHOWN_PLACES) for part in range(SHOWN_PLACES + 1)), self._first})
        rows = [(f"{self.places[at]:.2f}", *(f"{values[at]:.1f}" for values in self.columns.values())) for at in shown]
        return markdown_table((self.name, *self.columns), rows)

    def to_html(self) -> str:
        """The slider, with a script that tells the numbers."""
        name = escape(self.name, quote=True)
        places = [round(place, 4) for place in self.places]
        columns = {title: [round(value, 2) for value in values] for title, values in self.columns.items()}
        data = json.dumps({"places": places, "columns": columns}).replace("<", "\\u003c")
        return (
            f"<div class='slider'><label>{name} <input type='range' min='0' max='{len(self.places) - 1}' "
            f"value='{self._first}'></label> <output></output><script type='application/json'>{data}</script></div>"
        )

    @property
    def _first(self) -> int:
        return list(self.places).index(self.start)


Block = str | Table | Picture | Slider


class Section(NamedTuple):
    """A heading and what follows it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """Sections below a title.

    Examples:
        >>> page = Page("Squares", "Of numbers.", [Section("Table", [Table(("n", "n^2"), [("2", "4")])])])
        >>> print(page.to_markdown())
        # Squares
        <BLANKLINE>
        Of numbers.
        <BLANKLINE>
        ## Table
        <BLANKLINE>
        | n | n^2 |
        | --- | --- |
        | 2 | 4 |
    """

    title: str
    introduction: str
    sections: Sequence[Section]

    def to_markdown(self) -> str:
        """The page as Markdown, whose pictures lie beside it."""

        def rendered(block: Block) -> str:
            return block if isinstance(block, str) else block.to_markdown()

        parts = [f"# {self.title}", self.introduction]
        for section in self.sections:
            parts += [f"## {section.title}", *map(rendered, section.blocks)]
        return "\n\n".join(parts)

    def to_html(self, folder: Path) -> str:
        """The page as one HTML file, with the PNG pictures of `folder` inside; it fetches nothing."""

        def rendered(block: Block) -> str:
            if isinstance(block, Table):
                head = "".join(f"<th>{escape(cell)}</th>" for cell in block.header)
                rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in block.rows)
                return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            if isinstance(block, Picture):
                data = base64.b64encode((folder / block.file).read_bytes()).decode()
                caption = escape(block.caption, quote=True)
                image = f"<img alt='{caption}' src='data:image/png;base64,{data}'>"
                return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
            if isinstance(block, Slider):
                return block.to_html()
            return f"<p>{_text(block)}</p>"

        links = "".join(
            f"<a href='#s{place}'>{escape(section.title)}</a> " for place, section in enumerate(self.sections)
        )
        body = "".join(
            f"<h2 id='s{place}'>{escape(section.title)}</h2>{''.join(map(rendered, section.blocks))}"
            for place, section in enumerate(self.sections)
        )
        moved = any(isinstance(block, Slider) for section in self.sections for block in section.blocks)
        script = f"<script>{SCRIPT}</script>" if moved else ""
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{escape(self.title)}</h1><p>{_text(self.introduction)}</p><nav>{links}</nav>{body}{script}</body></html>\n"
        )


def _text(markdown: str) -> str:
    """Text whose only mark-up is `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown))
