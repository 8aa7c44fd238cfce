/* Writes values in Python's pickle format, protocol 2 (PEP 307; the opcodes are those of Python's
 * pickletools): dictionaries, lists, texts, integers. Values are not shared, so nothing is
 * memoized. An error of the stream sticks to it: the caller asks ferror at the end. Pure but for
 * the stream. */
#ifndef DPT_WORKER_TRACE_PICKLE_H
#define DPT_WORKER_TRACE_PICKLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Around the one value of a pickle. */
void dpt_pickle_begin(FILE *out);
void dpt_pickle_end(FILE *out);

/* Each writes one value. `text` is UTF-8. */
void dpt_pickle_int(FILE *out, int64_t value);
void dpt_pickle_text(FILE *out, const char *text);
void dpt_pickle_bool(FILE *out, bool value);
/* An empty dictionary or list. Items follow: a key, its value and dpt_pickle_set; or a value and
 * dpt_pickle_append. */
void dpt_pickle_dict(FILE *out);
void dpt_pickle_list(FILE *out);
void dpt_pickle_set(FILE *out);
void dpt_pickle_append(FILE *out);
/* Makes a tuple of the last two values. */
void dpt_pickle_pair(FILE *out);

/* A key, its value and dpt_pickle_set. */
void dpt_pickle_set_int(FILE *out, const char *key, int64_t value);
void dpt_pickle_set_text(FILE *out, const char *key, const char *text);

#endif
