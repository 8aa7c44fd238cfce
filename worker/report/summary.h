/* The texts of a report: the CSV and the lines for the terminal. */
#ifndef DPT_WORKER_REPORT_SUMMARY_H
#define DPT_WORKER_REPORT_SUMMARY_H

#include "worker/report/figures.h"

#include <stdio.h>

/* A header, then a row per rank. The columns are those of docs/reports.md; a value that is not
 * known is empty. */
void report_csv_print(const struct dpt_report *report, FILE *out);

/* A header, then a row per report: its name and its means. */
void report_means_csv_print(const struct dpt_report *reports, size_t n, FILE *out);

/* Means over the ranks, then a line per rank; the verdict. */
void report_terminal_print(const struct dpt_report *report, FILE *out);

/* A line per report. */
void report_comparison_print(const struct dpt_report *reports, size_t n, FILE *out);

/* A text as a field of a CSV, in quotes if it needs them (RFC 4180). */
void report_csv_text(const char *text, FILE *out);

#endif
