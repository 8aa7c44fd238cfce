/* The results of dpt-ctl: a page for people, or one JSON object. */
#ifndef DPT_WORKER_CTL_RESULT_H
#define DPT_WORKER_CTL_RESULT_H

#include "worker/ctl/args.h"
#include "worker/doctor/hang.h"

#include <jansson.h>

/* A command that is done. */
struct dpt_ctl_done {
    const struct dpt_ctl_args *args;
    const char *run, *text;
    int64_t step;       /* of a checkpoint; -1: the command makes none */
    const char *folder; /* "": not known */
    /* A node that has the folder, and its host; "": not known. A relative folder begins where its
     * worker was started. */
    const char *folder_node, *folder_host;
};

/* ---- page.c ---- */

void dpt_ctl_print_runs(const Dpt__ControlReply *reply, FILE *out);
/* A table, or a further part of one. */
void dpt_ctl_print_nodes(const Dpt__ControlReply *reply, bool further, FILE *out);
void dpt_ctl_print_run(const Dpt__RunInfo *run, FILE *out);
void dpt_ctl_print_ranks(const struct dpt_hang_view *view, FILE *out);
/* The ranks with their stacks. */
void dpt_ctl_print_dump(const Dpt__ServerState *answer, const struct dpt_hang_view *view,
                        FILE *out);
void dpt_ctl_print_done(const struct dpt_ctl_done *done, FILE *out);

/* ---- json.c. Each returns an owned object; NULL: no memory ---- */

json_t *dpt_ctl_json_runs(const Dpt__ControlReply *reply);
/* False: no memory. */
bool dpt_ctl_json_add_nodes(const Dpt__ControlReply *reply, json_t *array);
json_t *dpt_ctl_json_run(const Dpt__RunInfo *run);
/* `status`: the ranks of the view with their stacks; NULL: without. */
json_t *dpt_ctl_json_ranks(const struct dpt_hang_view *view, const Dpt__RunStatus *status);
json_t *dpt_ctl_json_dump(const Dpt__ServerState *answer, const struct dpt_hang_view *view);
json_t *dpt_ctl_json_done(const struct dpt_ctl_done *done);

#endif
