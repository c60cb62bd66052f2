"""Build a report page from texts, metrics, tables, plots and images in reading order, and write it as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from twinloop.core.console import escape_control
from twinloop.core.documents import read_bytes
from twinloop.core.errors import InputError
from twinloop.core.files import write_text
from twinloop.core.redaction import redact_text

Cell: TypeAlias = str | int | float | bool | None
Tone = Literal["good", "bad"]

_MOST_IMAGE_BYTES = 64 << 20  # of one image, which is copied into the page
_OTHER_TAG = re.compile(r"<(?!/?(?:b|i|br|sub|sup|extra)>)")  # tags that our plots do not use
_MEDIA = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True, kw_only=True)
class KeyMetric:
    """One number that a page shows in large type.

    Attributes:
        label: Name of the metric.
        value: Number or text.
        unit: Unit of the number.
        source: Origin of the number, such as the data or the run.
        tone: Colour, ``good`` or ``bad``; None for the text colour.
    """

    label: str
    value: Cell
    unit: str = ""
    source: str = ""
    tone: Tone | None = None


class ReportPage:
    """HTML page that needs no network, has a light and a dark style, and can be printed.

    Every method except `html` and `write` adds content at the end and returns the page, so that calls can be chained.
    All text is escaped.

    Args:
        title: Title of the page.
        subtitle: One line below the title: the source of the data, the version, the command.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self._blocks: list[str] = []
        self._plots = 0

    def section(self, title: str, text: str = "") -> Self:
        """Begin a section with a title and, if ``text`` is given, with its paragraphs."""
        self._blocks.append(f"<h2>{_escape_text(title)}</h2>")
        return self.text(text) if text else self

    def text(self, text: str) -> Self:
        """Add paragraphs of text; blank lines separate them."""
        paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
        self._blocks.extend(f"<p>{_escape_text(paragraph)}</p>" for paragraph in paragraphs)
        return self

    def key_metrics(self, metrics: Iterable[KeyMetric]) -> Self:
        """Add a row of numbers in large type."""
        self._blocks.append(f'<dl class="metrics">{"".join(_format_key_metric(metric) for metric in metrics)}</dl>')
        return self

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        caption: str = "",
        tones: Mapping[tuple[int, int], Tone] | None = None,
    ) -> Self:
        """Add a table; columns of numbers are aligned to the right.

        Args:
            columns: Titles of the columns.
            rows: Cells of each row.
            caption: Text above the table.
            tones: Colours of single cells, ``good`` or ``bad``, by (row, column).

        Raises:
            InputError: If the number of cells in a row differs from the number of columns.
        """
        rows = [list(row) for row in rows]
        for number, row in enumerate(rows):
            if len(row) != len(columns):
                raise InputError(f"Row {number} of the table has {len(row)} cells for {len(columns)} columns.")
        self._blocks.append(_format_table(columns, rows, caption, tones or {}))
        return self

    def plot(self, figure: Any, caption: str = "") -> Self:
        """Add a plotly figure, for example from `twinloop.report.plots`, with a caption below it."""
        self._plots += 1
        spec = json.dumps(_remove_links(json.loads(figure.to_json())), ensure_ascii=False)
        spec = escape_control(spec).replace("<", "\\u003c")  # no string can then end or nest the script element
        height = figure.layout.height or 380
        self._blocks.append(
            f'<figure class="plot"><div class="canvas" style="min-height:{height}px"></div>'
            f'<script type="application/json">{spec}</script>{_format_caption(caption)}</figure>'
        )
        return self

    def image(self, content: Path | bytes | NDArray[np.uint8], caption: str = "", *, alt: str = "") -> Self:
        """Add an image with a caption below it.

        Args:
            content: PNG, JPEG or GIF file or its bytes, or an array of shape ``(height, width, 3)`` in uint8, which is
                stored as JPEG.
            caption: Text below the image.
            alt: Text for screen readers; the caption by default.

        Raises:
            InputError: If the file is missing or has another format.
        """
        data = _read_image(content)
        media = next((media for magic, media in _MEDIA.items() if data.startswith(magic)), None)
        if media is None:
            what = str(content) if isinstance(content, Path) else f"data beginning with {data[:4]!r}"
            raise InputError(f"{what} is not an image. A report takes PNG, JPEG or GIF.")
        source = f"data:{media};base64,{base64.b64encode(data).decode()}"
        tag = f'<img src="{source}" alt="{_escape_text(alt or caption)}">'
        self._blocks.append(f"<figure>{tag}{_format_caption(caption)}</figure>")
        return self

    def html(self) -> str:
        """Return the whole page as HTML text."""
        subtitle = f'<p class="subtitle">{_escape_text(self.subtitle)}</p>' if self.subtitle else ""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"{self._format_security_policy()}\n"
            f"<title>{_escape_text(self.title)}</title>\n<style>\n{_read_asset('report.css')}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{_escape_text(self.title)}</h1>{subtitle}</header>\n"
            + "\n".join(self._blocks)
            + f"\n</main>\n{self._format_scripts()}</body>\n</html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page to an HTML file atomically and return the file's path."""
        write_text(path, self.html())
        return path

    def _format_scripts(self) -> str:
        return "".join(f"<script>{script}</script>\n" for script in self._list_scripts())

    def _list_scripts(self) -> list[str]:
        """Return the JavaScript code of the page, which is the same on every page that has plots."""
        if not self._plots:
            return []
        from twinloop.report.figure import plotly_bundle

        return [plotly_bundle(), f"\n{_read_asset('report.js')}"]

    def _format_security_policy(self) -> str:
        """Return the content security policy: a browser may run only the page's own scripts and load nothing else."""
        hashes = [
            base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in self._list_scripts()
        ]
        # plotly compiles functions from strings, which needs 'unsafe-eval'.
        scripts = " ".join((*(f"'sha256-{one}'" for one in hashes), "'unsafe-eval'")) if hashes else "'none'"
        content = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"
        return f'<meta http-equiv="Content-Security-Policy" content="{content}">'


def format_cell(value: Cell, decimals: int | None = None) -> str:
    """Format a table cell as text, with thin spaces between thousands.

    Floats have three significant digits or, if given, ``decimals`` decimals. True and False become "yes" and "no". None
    and NaN become a dash.
    """
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return _format_typography(f"{value:,}")
    if isinstance(value, float | np.floating):
        return _format_float(float(value), decimals)
    return str(value)


def _format_float(value: float, decimals: int | None) -> str:
    if not np.isfinite(value):
        return "∞" if value > 0 else _format_typography("-∞")
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return _format_typography(f"{mantissa}·10") + raised
    if decimals is not None:
        return _format_typography(f"{value:,.{decimals}f}")
    text = f"{value:,.{_decimals(size)}f}"
    return _format_typography(text.rstrip("0").rstrip(".") if "." in text else text)


def _decimals(size: float) -> int:
    """Return the number of decimals with which a number of this size has three significant digits."""
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 6)) if size else 0


def _format_typography(number: str) -> str:
    """Replace hyphens by minus signs and commas by thin spaces."""
    return number.replace(",", "\u2009").replace("-", "\u2212")


def _escape_cell(cell: Cell, decimals: int | None = None) -> str:
    text = format_cell(cell, decimals)
    return _escape_text(text) if isinstance(cell, str) else html.escape(text)


def _escape_text(text: str) -> str:
    """Escape a text for HTML; control characters are made visible and credentials are removed."""
    return html.escape(escape_control(redact_text(text)))


def _remove_links(value: Any) -> Any:
    """Return a plotly figure, as JSON values, with the markup in its texts escaped.

    Otherwise plotly would render links and spans in texts that come from data.
    """
    if isinstance(value, dict):
        return {key: _remove_links(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_remove_links(item) for item in cast("list[Any]", value)]
    return _OTHER_TAG.sub("&lt;", value) if isinstance(value, str) and "<" in value else value


def _format_key_metric(figure: KeyMetric) -> str:
    tone = f' class="{figure.tone}"' if figure.tone else ""
    unit = f' <span class="unit">{_escape_text(figure.unit)}</span>' if figure.unit else ""
    source = f'<dd class="source">{_escape_text(figure.source)}</dd>' if figure.source else ""
    value = _escape_cell(figure.value)
    return f"<div><dt>{_escape_text(figure.label)}</dt><dd{tone}>{value}{unit}</dd>{source}</div>"


def _format_table(
    columns: Sequence[str], rows: list[list[Cell]], caption: str, tones: Mapping[tuple[int, int], Tone]
) -> str:
    numeric = [all(isinstance(row[i], int | float | np.number | None) for row in rows) for i in range(len(columns))]
    decimals = [_column_decimals([row[i] for row in rows]) for i in range(len(columns))]

    def attribute(column: int, row: int = -1) -> str:
        names = (["number"] if numeric[column] else []) + ([tones[row, column]] if (row, column) in tones else [])
        return f' class="{" ".join(names)}"' if names else ""

    head = "".join(f"<th{attribute(i)}>{_escape_text(name)}</th>" for i, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(f"<td{attribute(i, number)}>{_escape_cell(cell, decimals[i])}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for number, row in enumerate(rows)
    )
    title = f"<caption>{_escape_text(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _column_decimals(cells: Sequence[Cell]) -> int:
    """Return the number of decimals with which a column's largest float has three significant digits."""
    sizes = [abs(float(cell)) for cell in cells if isinstance(cell, float | np.floating) and 1e-4 <= abs(cell) < 1e6]
    return _decimals(max(sizes, default=0.0))


def _format_caption(text: str) -> str:
    return f"<figcaption>{_escape_text(text)}</figcaption>" if text else ""


def _read_image(content: Path | bytes | NDArray[np.uint8]) -> bytes:
    if isinstance(content, Path):
        return read_bytes(content, _MOST_IMAGE_BYTES)
    return content if isinstance(content, bytes) else _encode_jpeg(content)


def _encode_jpeg(content: NDArray[np.uint8]) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(content)).save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def _read_asset(name: str) -> str:
    return (resources.files("twinloop.report") / "assets" / name).read_text(encoding="utf-8")
