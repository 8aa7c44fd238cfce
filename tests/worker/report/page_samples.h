/* Reports made by hand, for the tests of the page: each stands for a kind of run that the page must
 * draw. */
#ifndef DPT_TESTS_WORKER_REPORT_PAGE_SAMPLES_H
#define DPT_TESTS_WORKER_REPORT_PAGE_SAMPLES_H

#include "worker/report/figures.h"

enum { PAGE_SAMPLES = 8, PAGE_SAMPLE_REPORTS_MAX = 5 };

/* The name of sample `i`, from 0 to PAGE_SAMPLES - 1: "eight_ranks". */
const char *page_sample_name(int i);

/* Makes the reports of sample `i`, one or, for a comparison, several. Returns their number. The
 * caller frees each with dpt_report_free. The same call gives the same reports. */
size_t page_sample_make(int i, struct dpt_report ret[PAGE_SAMPLE_REPORTS_MAX]);

#endif
