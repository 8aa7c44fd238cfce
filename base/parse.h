/* Strict numbers from text, for the config and command lines. The whole text is one decimal number
 * in range: no blanks, no "0x", no leading zeros, no "inf" or "nan". An error names the expected
 * form. */
#ifndef DPT_BASE_PARSE_H
#define DPT_BASE_PARSE_H

#include "base/err.h"

#include <stdint.h>

/* DPT_EINVAL with "expected an integer from 1 to 8, got 'x'". */
DPT_MUST_USE enum dpt_status dpt_parse_i64(const char *text, int64_t min, int64_t max,
                                           int64_t *ret_value, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_parse_u64(const char *text, uint64_t max, uint64_t *ret_value,
                                           struct dpt_err *err);

/* Parses a finite decimal number such as 3, 0.5, .5 or 3.0e-4 to the nearest double. DPT_EINVAL:
 * the text is not a number, or the number is too large for a double, or so small (but not zero)
 * that it is not a normal double. */
DPT_MUST_USE enum dpt_status dpt_parse_double(const char *text, double *ret_value,
                                              struct dpt_err *err);

/* Writes the shortest decimal text that dpt_parse_double reads back to the same bits. `value` must
 * be finite. */
enum { DPT_DOUBLE_TEXT_BYTES = 32 };
void dpt_format_double(double value, char ret_text[DPT_DOUBLE_TEXT_BYTES]);

/* The parts of HOST:PORT or [IPv6]:PORT. */
struct dpt_endpoint {
    char host[256]; /* without brackets */
    char port[6];   /* 1 to 65535 */
};

/* Splits HOST:PORT or [IPv6]:PORT, and checks the form, not the address. DPT_EINVAL names the wrong
 * part. */
DPT_MUST_USE enum dpt_status dpt_split_endpoint(const char *text, struct dpt_endpoint *ret,
                                                struct dpt_err *err);
/* Only checks. */
DPT_MUST_USE enum dpt_status dpt_parse_endpoint(const char *text, struct dpt_err *err);

#endif
