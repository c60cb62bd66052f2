"""The builder of a report: blocks are added in reading order, then written as one file."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twinloop.core.documents import read_bytes
from twinloop.core.errors import InputError
from twinloop.core.files import write_text

Cell: TypeAlias = str | int | float | bool | None
Tone = Literal["good", "bad"]

_MOST_PICTURE_BYTES = 64 << 20  # of one picture, which is copied into the page
_MEDIA = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True, kw_only=True)
class KeyFigure:
    """One number with what a reader must know about it: its unit, and the data or the run it comes from."""

    label: str
    value: Cell
    unit: str = ""
    source: str = ""
    tone: Tone | None = None


class Report:
    """A page that needs no network, reads in light and dark, and prints.

    Every method but `html` and `write` adds a block and returns the report, so that calls chain. All text is escaped.

    Args:
        title: what the page is about.
        subtitle: one line below it: the source of the data, the version, the command.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._blocks: list[str] = []
        self._plots = 0

    def section(self, title: str, text: str = "") -> Self:
        """Begin a section, with an opening paragraph when ``text`` is given."""
        self._blocks.append(f"<h2>{html.escape(title)}</h2>")
        return self.text(text) if text else self

    def text(self, text: str) -> Self:
        """Add paragraphs, separated by blank lines."""
        paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
        self._blocks.extend(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)
        return self

    def figures(self, figures: Iterable[KeyFigure]) -> Self:
        """Add a row of key figures."""
        self._blocks.append(f'<dl class="figures">{"".join(_key_figure(figure) for figure in figures)}</dl>')
        return self

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        caption: str = "",
        tones: Mapping[tuple[int, int], Tone] | None = None,
    ) -> Self:
        """Add a table; columns that hold only numbers are set flush right.

        Args:
            tones: marks cells by (row, column) as good or bad.

        Raises:
            InputError: a row with another number of cells than there are columns.
        """
        rows = [list(row) for row in rows]
        for number, row in enumerate(rows):
            if len(row) != len(columns):
                raise InputError(f"Row {number} of the table has {len(row)} cells for {len(columns)} columns.")
        self._blocks.append(_table(columns, rows, caption, tones or {}))
        return self

    def plot(self, figure: Any, caption: str = "") -> Self:
        """Add a plotly figure, for example from `twinloop.report.plots`."""
        self._plots += 1
        spec = figure.to_json().replace("</", "<\\/")  # so that no string in it ends the script element
        height = figure.layout.height or 380
        self._blocks.append(
            f'<figure class="plot"><div class="canvas" style="min-height:{height}px"></div>'
            f'<script type="application/json">{spec}</script>{_caption(caption)}</figure>'
        )
        return self

    def image(self, picture: Path | bytes | NDArray[np.uint8], caption: str = "", *, alt: str = "") -> Self:
        """Add a picture: a PNG, JPEG or GIF file or its bytes, or an array ``(H, W, 3)`` uint8, stored as JPEG.

        Raises:
            InputError: the file is missing, or is none of these.
        """
        data = _picture_bytes(picture)
        media = next((media for magic, media in _MEDIA.items() if data.startswith(magic)), None)
        if media is None:
            what = str(picture) if isinstance(picture, Path) else f"data beginning with {data[:4]!r}"
            raise InputError(f"{what} is not a picture. A report takes PNG, JPEG or GIF.")
        source = f"data:{media};base64,{base64.b64encode(data).decode()}"
        tag = f'<img src="{source}" alt="{html.escape(alt or caption)}">'
        self._blocks.append(f"<figure>{tag}{_caption(caption)}</figure>")
        return self

    def html(self) -> str:
        """The whole page."""
        subtitle = f'<p class="subtitle">{html.escape(self.subtitle)}</p>' if self.subtitle else ""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{html.escape(self.title)}</h1>{subtitle}</header>\n"
            + "\n".join(self._blocks)
            + f"\n</main>\n{self._scripts()}</body>\n</html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page atomically and return its path."""
        write_text(path, self.html())
        return path

    def _scripts(self) -> str:
        if not self._plots:
            return ""
        from twinloop.report.figure import plotly_bundle

        return f"<script>{plotly_bundle()}</script>\n<script>\n{_asset('report.js')}</script>\n"


def format_cell(value: Cell, decimals: int | None = None) -> str:
    """A cell as text: floats to three significant digits or to ``decimals``, thin spaces between thousands.

    True and False read yes and no, None and NaN a dash.
    """
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return _typeset(f"{value:,}")
    if isinstance(value, float | np.floating):
        return _format_float(float(value), decimals)
    return str(value)


def _format_float(value: float, decimals: int | None) -> str:
    if not np.isfinite(value):
        return "∞" if value > 0 else _typeset("-∞")
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return _typeset(f"{mantissa}·10") + raised
    if decimals is not None:
        return _typeset(f"{value:,.{decimals}f}")
    text = f"{value:,.{_decimals(size)}f}"
    return _typeset(text.rstrip("0").rstrip(".") if "." in text else text)


def _decimals(size: float) -> int:
    """Decimals that show three significant digits of a number of this size."""
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 6)) if size else 0


def _typeset(number: str) -> str:
    """A true minus sign, and thin spaces instead of commas."""
    return number.replace(",", "\u2009").replace("-", "\u2212")


def _key_figure(figure: KeyFigure) -> str:
    tone = f' class="{figure.tone}"' if figure.tone else ""
    unit = f' <span class="unit">{html.escape(figure.unit)}</span>' if figure.unit else ""
    source = f'<dd class="source">{html.escape(figure.source)}</dd>' if figure.source else ""
    value = html.escape(format_cell(figure.value))
    return f"<div><dt>{html.escape(figure.label)}</dt><dd{tone}>{value}{unit}</dd>{source}</div>"


def _table(columns: Sequence[str], rows: list[list[Cell]], caption: str, tones: Mapping[tuple[int, int], Tone]) -> str:
    numeric = [all(isinstance(row[i], int | float | np.number | None) for row in rows) for i in range(len(columns))]
    decimals = [_column_decimals([row[i] for row in rows]) for i in range(len(columns))]

    def attribute(column: int, row: int = -1) -> str:
        names = (["number"] if numeric[column] else []) + ([tones[row, column]] if (row, column) in tones else [])
        return f' class="{" ".join(names)}"' if names else ""

    head = "".join(f"<th{attribute(i)}>{html.escape(name)}</th>" for i, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{attribute(i, number)}>{html.escape(format_cell(cell, decimals[i]))}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for number, row in enumerate(rows)
    )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _column_decimals(cells: Sequence[Cell]) -> int:
    """Decimals that show three significant digits of a column's largest float, so that its points line up."""
    sizes = [abs(float(cell)) for cell in cells if isinstance(cell, float | np.floating) and 1e-4 <= abs(cell) < 1e6]
    return _decimals(max(sizes, default=0.0))


def _caption(text: str) -> str:
    return f"<figcaption>{html.escape(text)}</figcaption>" if text else ""


def _picture_bytes(picture: Path | bytes | NDArray[np.uint8]) -> bytes:
    if isinstance(picture, Path):
        return read_bytes(picture, _MOST_PICTURE_BYTES)
    return picture if isinstance(picture, bytes) else _jpeg(picture)


def _jpeg(picture: NDArray[np.uint8]) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def _asset(name: str) -> str:
    return (resources.files("twinloop.report") / "assets" / name).read_text(encoding="utf-8")
