/* Figures of other runs, which the user gives as CSV. */
#ifndef DPT_WORKER_REPORT_USER_CSV_H
#define DPT_WORKER_REPORT_USER_CSV_H

#include "worker/report/figures.h"

enum { REPORT_CSV_ROWS_MAX = 64 };

/* Reads rows into ret[rows_max] as reports that have name, source "csv", world_size and means. The
 * header names the columns: `name`, and any of `world_size` and the columns of
 * report_mean_columns; others are passed over. An empty field is not known. DPT_EINVAL: the error
 * names the line and the column. */
DPT_MUST_USE enum dpt_status report_user_csv_read(const char *path, struct dpt_report *ret,
                                                  size_t rows_max, size_t *ret_n,
                                                  struct dpt_err *err);

#endif
