/* The command line of dpt-ctl. */
#ifndef DPT_WORKER_CTL_ARGS_H
#define DPT_WORKER_CTL_ARGS_H

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct dpt_ctl_args {
    bool help, version, json;
    Dpt__ControlVerb verb;
    const char *command;  /* the word of the verb */
    const char *endpoint; /* HOST:PORT */
    const char *key_dir;  /* NULL: not given */
    const char *run;      /* "": not given */
    const char *node;     /* "": the command is about no node */
    int64_t timeout_s;    /* longest time without an answer */
    int64_t wait_s;       /* longest time until the command is done */
};

/* `environment`: $DPT_RDZV_ENDPOINT; may be NULL. DPT_EINVAL says which word is wrong. --help and
 * --version end the reading. `ret` points into argv. */
DPT_MUST_USE enum dpt_status dpt_ctl_args_read(int argc, char *const *argv, const char *environment,
                                               struct dpt_ctl_args *ret, struct dpt_err *err);

void dpt_ctl_args_help(FILE *out);

#endif
