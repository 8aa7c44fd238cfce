/* A table of command line options, "--name VALUE" or "--name=VALUE". */
#ifndef DPT_BASE_OPTION_H
#define DPT_BASE_OPTION_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One of `text`, `number` and `set` takes the value. An option without a value sets *flag. */
struct dpt_option {
    const char *name;  /* "--dtype" */
    const char *value; /* name of the value in the help; NULL: the option takes no value */
    const char *help;  /* NULL: another text describes the option */
    const char **text;
    bool *flag;
    int64_t *number, min, max;
    enum dpt_status (*set)(void *ctx, const char *value, struct dpt_err *err);
    void *ctx;
};

/* Reads the option at argv[*at], which begins with "--", into its target. Moves *at to the last
 * word of the option. DPT_EINVAL: the option is unknown, or its value is missing or not accepted;
 * the error names the option. */
DPT_MUST_USE enum dpt_status dpt_option_read(const struct dpt_option *table, size_t n, int argc,
                                             char *const *argv, int *at, struct dpt_err *err);

#endif
