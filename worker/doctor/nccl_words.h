/* Names and pieces of the lines that NCCL writes about its choices. Pure. */
#ifndef DPT_WORKER_DOCTOR_NCCL_WORDS_H
#define DPT_WORKER_DOCTOR_NCCL_WORDS_H

#include "worker/doctor/nccl_tuning.h"

/* The index of a name, or of a number where NCCL writes one; -1: it is not known. */
int dpt_nccl_find_collective(const char *name);
int dpt_nccl_find_algorithm(const char *name);
int dpt_nccl_find_protocol(const char *name);

/* Each takes a piece of the line and moves *at behind it, or returns false. */
bool dpt_nccl_take_text(const char **at, const char *text);
/* Letters, digits and underscores. */
bool dpt_nccl_take_word(const char **at, char ret[DPT_NCCL_NAME_BYTES]);
/* An integer from 0 to `max`. */
bool dpt_nccl_take_size(const char **at, uint64_t max, uint64_t *ret);
/* A decimal number with exactly `places` digits behind the point. */
bool dpt_nccl_take_decimal(const char **at, size_t places, double *ret);
/* Whether only blanks follow. */
bool dpt_nccl_is_end(const char *at);

#endif
