/* Options of dpt-ckpt's commands: `--name value` and `--name=value`, from a table. */
#ifndef DPT_WORKER_CKPT_OPTION_H
#define DPT_WORKER_CKPT_OPTION_H

#include "base/err.h"

struct dpt_ckpt_option {
    const char *name, *value; /* "--dtype"; what --help calls its value, NULL: it takes none */
    int id;                   /* of the command's own enum */
    const char *help;         /* NULL where the command's usage says it */
};

/* Reads the option at argv[*at], which begins with "--", and moves *at to the last word that it
 * takes. *ret_value is NULL for an option without a value; it and *ret_option stay valid as long as
 * argv and the table. DPT_EINVAL: an option that is not in the table, a value that is missing or
 * that the option does not take. */
DPT_MUST_USE enum dpt_status dpt_ckpt_option_read(const struct dpt_ckpt_option *table, int n,
                                                  int argc, char *const *argv, int *at,
                                                  const struct dpt_ckpt_option **ret_option,
                                                  const char **ret_value, struct dpt_err *err);

#endif
