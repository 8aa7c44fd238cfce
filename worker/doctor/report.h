/* The output of a command: a page for people, and the same as JSON. */
#ifndef DPT_WORKER_DOCTOR_REPORT_H
#define DPT_WORKER_DOCTOR_REPORT_H

#include "worker/doctor/gpus.h"
#include "worker/doctor/hang.h"
#include "worker/doctor/matrix.h"
#include "worker/doctor/nccl_log.h"
#include "worker/doctor/nics.h"

/* Each prints a table; the lines of findings are printed apart. */
void dpt_report_print_gpus(const struct dpt_gpus *gpus, const struct dpt_nics *nics, FILE *out);
void dpt_report_print_matrix(const struct dpt_matrix *matrix, FILE *out);
void dpt_report_print_nccl(const struct dpt_nccl_log *log, FILE *out);
/* What NCCL chose by size, and why; nothing where the log does not say it. */
void dpt_report_print_tuning(const struct dpt_nccl_tuning *tuning, FILE *out);
void dpt_report_print_ranks(const struct dpt_hang *hang, FILE *out);

/* Each returns an owned object; NULL: no memory. */
json_t *dpt_report_json_gpus(const struct dpt_gpus *gpus);
json_t *dpt_report_json_nics(const struct dpt_nics *nics);
json_t *dpt_report_json_matrix(const struct dpt_matrix *matrix);
json_t *dpt_report_json_nccl(const struct dpt_nccl_log *log);
json_t *dpt_report_json_tuning(const struct dpt_nccl_tuning *tuning);
json_t *dpt_report_json_hang(const struct dpt_hang *hang);

/* Writes `object` (taken; NULL: no memory) to the file, or to the standard output if it is "-". */
DPT_MUST_USE enum dpt_status dpt_report_write(json_t *object, const char *file,
                                              struct dpt_err *err);

#endif
