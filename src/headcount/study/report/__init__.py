"""The report: figures, tables, claims and one self-contained page, from a study folder."""

from headcount.study.report.write import Written, write_report

__all__ = ["Written", "write_report"]
