"""Readers of pages and plots, so that a test reads their numbers and not their markup."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np

from twinloop.report import ReportPage
from twinloop.stats import Interval


class KeptReport(ReportPage):
    """What was added to a page, in the order of its adding.

    ``heads``, ``words``, ``key_figures`` with ``tones_of_figures`` and ``units_of_figures`` by label, ``tables``
    (dicts of columns) with ``rows`` (of which two columns may share a name), ``captions`` and ``marks``, ``plots``,
    and ``images`` with their captions.
    """

    def __init__(self, title="page", subtitle=""):
        super().__init__(title, subtitle)
        self.heads, self.words, self.key_figures, self.tables, self.plots = [], [], [], [], []
        self.tones_of_figures, self.units_of_figures = {}, {}
        self.rows, self.captions, self.marks, self.images = [], [], [], []

    def section(self, title, text=""):
        self.heads.append(title)
        return super().section(title, text)

    def text(self, text):
        self.words.append(text)
        return super().text(text)

    def key_metrics(self, figures):
        figures = list(figures)
        self.key_figures += [(one.label, one.value, one.source) for one in figures]
        self.units_of_figures |= {one.label: one.unit for one in figures}
        self.tones_of_figures |= {one.label: one.tone for one in figures}
        return super().key_metrics(figures)

    def table(self, columns, rows, **more):
        rows = [list(row) for row in rows]
        self.tables.append({name: [row[i] for row in rows] for i, name in enumerate(columns)})
        self.rows.append(rows)
        self.captions.append(more.get("caption", ""))
        self.marks.append(dict(more.get("tones") or {}))
        return super().table(columns, rows, **more)

    def plot(self, figure, caption=""):
        self.plots.append((figure, caption))
        return super().plot(figure, caption)

    def image(self, picture, caption="", **more):
        self.images.append((picture, caption))
        return super().image(picture, caption, **more)

    @property
    def said(self):
        """All paragraphs as one text."""
        return "\n\n".join(self.words)


def fetched(page):
    """Return the addresses that a browser would fetch for a page; what stands in a script's text is none."""
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            named = dict(attrs)
            addresses = [named.get("src"), named.get("srcset"), named.get("href") if tag == "link" else None]
            found.extend(address for address in addresses if address and not address.startswith("data:"))

    Tags().feed(page)
    return found


def interval(estimate, low, high, level=0.95, method="by hand"):
    """An interval whose three numbers are given."""
    return Interval(estimate=estimate, low=low, high=high, level=level, method=method)


def ends(trace, axis="x"):
    """Lower and upper ends of a trace's error bars."""
    bars, values = trace[f"error_{axis}"], np.asarray(trace[axis], dtype=float)
    assert (bars.type, bars.symmetric) == ("data", False)
    return (values - np.asarray(bars.arrayminus, dtype=float)).tolist(), (values + np.asarray(bars.array)).tolist()


def lines_at(figure, axis):
    """Where straight lines across a plot stand, in the order of their adding."""
    return [getattr(shape, f"{axis}0") for shape in figure.layout.shapes]


def traces(figure, name):
    """The traces of a plot that carry this name, in their order."""
    return [trace for trace in figure.data if trace.name == name]


def titles(figure):
    """Titles of the first panel's axes, across and up."""
    return figure.layout.xaxis.title.text, figure.layout.yaxis.title.text


def panels(figure):
    """Titles of the panels."""
    return [note.text for note in figure.layout.annotations]


def upright_lines(figure):
    """Where lines cross a plot from its bottom to its top."""
    shapes = [shape for shape in figure.layout.shapes if shape.yref.endswith("domain")]
    assert all(shape.x0 == shape.x1 for shape in shapes)
    return [shape.x0 for shape in shapes]


def level_lines(figure):
    """Where lines cross a plot from its left to its right."""
    shapes = [shape for shape in figure.layout.shapes if shape.xref.endswith("domain")]
    assert all(shape.y0 == shape.y1 for shape in shapes)
    return [shape.y0 for shape in shapes]
