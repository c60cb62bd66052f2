"""Readers of pages and plots, so that a test reads their numbers and not their markup."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np

from twinloop.report import ReportPage
from twinloop.stats import Interval


class KeptReport(ReportPage):
    """The content added to a page, in order.

    ``heads``, ``words``, ``shown_metrics`` with ``tones_of_metrics`` and ``units_of_metrics`` by label, ``tables``
    (dicts of columns) with ``rows`` (of which two columns may share a name), ``captions`` and ``marks``, ``plots``,
    and ``images`` with their captions.
    """

    def __init__(self, title="page", subtitle=""):
        super().__init__(title, subtitle)
        self.heads, self.words, self.shown_metrics, self.tables, self.plots = [], [], [], [], []
        self.tones_of_metrics, self.units_of_metrics = {}, {}
        self.rows, self.captions, self.marks, self.images = [], [], [], []

    def section(self, title, text=""):
        self.heads.append(title)
        return super().section(title, text)

    def text(self, text):
        self.words.append(text)
        return super().text(text)

    def key_metrics(self, metrics):
        metrics = list(metrics)
        self.shown_metrics += [(one.label, one.value, one.source) for one in metrics]
        self.units_of_metrics |= {one.label: one.unit for one in metrics}
        self.tones_of_metrics |= {one.label: one.tone for one in metrics}
        return super().key_metrics(metrics)

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

    def image(self, content, caption="", **more):
        self.images.append((content, caption))
        return super().image(content, caption, **more)

    @property
    def said(self):
        """All paragraphs as one text."""
        return "\n\n".join(self.words)


def fetched(page):
    """Return the addresses that a browser would fetch for a page, except those in a script's text."""
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


def lines_at(metric, axis):
    """Return the positions of straight lines across a plot, in order of addition."""
    return [getattr(shape, f"{axis}0") for shape in metric.layout.shapes]


def traces(metric, name):
    """The traces of a plot that carry this name, in their order."""
    return [trace for trace in metric.data if trace.name == name]


def titles(metric):
    """Titles of the first panel's axes, across and up."""
    return metric.layout.xaxis.title.text, metric.layout.yaxis.title.text


def panels(metric):
    """Titles of the panels."""
    return [note.text for note in metric.layout.annotations]


def upright_lines(metric):
    """Where lines cross a plot from its bottom to its top."""
    shapes = [shape for shape in metric.layout.shapes if shape.yref.endswith("domain")]
    assert all(shape.x0 == shape.x1 for shape in shapes)
    return [shape.x0 for shape in shapes]


def level_lines(metric):
    """Where lines cross a plot from its left to its right."""
    shapes = [shape for shape in metric.layout.shapes if shape.xref.endswith("domain")]
    assert all(shape.y0 == shape.y1 for shape in shapes)
    return [shape.y0 for shape in shapes]
