"""One self-contained HTML page of figures, tables, plots and pictures; nothing in it is fetched from anywhere."""

from twinloop.report.page import KeyMetric, ReportPage

__all__ = ["KeyMetric", "ReportPage"]
