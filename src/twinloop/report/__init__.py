"""Build self-contained HTML pages of metrics, tables, plots and images; a page needs no external resources."""

from twinloop.report.page import KeyMetric, ReportPage

__all__ = ["KeyMetric", "ReportPage"]
