"""Self-contained HTML pages of metrics, tables, plots and images, without external resources."""

from twinloop.report.page import KeyMetric, ReportPage

__all__ = ["KeyMetric", "ReportPage"]
