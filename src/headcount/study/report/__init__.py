"""The report: figures, tables, claims and one self-contained page, from a study folder."""

from headcount.study.report.write import Written, write_report

report = write_report  # the verb's name, for `headcount.report`

__all__ = ["Written", "report", "write_report"]
