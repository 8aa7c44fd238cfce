/* The page of a report: one HTML file without references, for light and dark screens of any width.
 */
#ifndef DPT_WORKER_REPORT_PAGE_H
#define DPT_WORKER_REPORT_PAGE_H

#include "worker/report/figures.h"

#include <stdio.h>

/* Writes the page of one report (n 1), or of a comparison (n 2 or more), in the order of the
 * reports. Borrows the reports. Texts of reports may contain any characters. DPT_EIO: the file did
 * not take the page. */
DPT_MUST_USE enum dpt_status dpt_report_page_write(const struct dpt_report *reports, size_t n,
                                                   FILE *out, struct dpt_err *err);

#endif
