"""A report that also keeps what was added to it, so that a test reads the numbers of a page and not its markup."""

from __future__ import annotations

from twinloop.report import Report


class KeptReport(Report):
    """``heads``, ``words``, ``key_figures``, ``tables`` (dicts of columns) and ``plots``, as they were added."""

    def __init__(self, title="page", subtitle=""):
        super().__init__(title, subtitle)
        self.heads, self.words, self.key_figures, self.tables, self.plots = [], [], [], [], []

    def section(self, title, text=""):
        self.heads.append(title)
        return super().section(title, text)

    def text(self, text):
        self.words.append(text)
        return super().text(text)

    def figures(self, figures):
        figures = list(figures)
        self.key_figures += [(one.label, one.value, one.source) for one in figures]
        return super().figures(figures)

    def table(self, columns, rows, **more):
        rows = [list(row) for row in rows]
        self.tables.append({name: [row[i] for row in rows] for i, name in enumerate(columns)})
        return super().table(columns, rows, **more)

    def plot(self, figure, caption=""):
        self.plots.append((figure, caption))
        return super().plot(figure, caption)
