/* The data plane between GPUs (nccl_comm.h): creation and the ends. nccl_open.c builds the
 * communicators of a generation, nccl_queue.c runs operations on them. */
#include "worker/comm/nccl_comm_state.h"

#include <stdlib.h>

enum dpt_status dpt_nccl_comm_create(const struct dpt_nccl_calls *calls, void *ctx, int timeout_ms,
                                     struct dpt_nccl_comm **ret, struct dpt_err *err)
{
    struct dpt_nccl_comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return dpt_fail_nomem(err, "the GPU's communicators");
    c->calls = calls;
    c->ctx = ctx;
    dpt_nccl_guard_init(&c->guard,
                        timeout_ms > calls->stop_ms_min ? timeout_ms : calls->stop_ms_min);
    enum dpt_status status =
        dpt_nccl_machine_create(calls, ctx, &c->guard, timeout_ms, &c->machine, err);
    if (status == DPT_OK)
        status = dpt_nccl_watch_create(&c->guard, &c->watch, err);
    if (status != DPT_OK) {
        dpt_nccl_machine_destroy(&c->machine);
        free(c);
        return status;
    }
    *ret = c;
    return DPT_OK;
}

void dpt_nccl_comm_destroy(struct dpt_nccl_comm **comm_p)
{
    struct dpt_nccl_comm *c = *comm_p;
    *comm_p = NULL;
    if (c == NULL)
        return;
    DPT_ASSERT(c->control == NULL);
    dpt_nccl_comm_stop(c, -1);
    dpt_nccl_watch_destroy(&c->watch);
    dpt_nccl_machine_destroy(&c->machine);
    free(c);
}

void dpt_nccl_comm_close(struct dpt_nccl_comm *c)
{
    if (c->control == NULL)
        return;
    for (int g = 0; g <= c->n_splits; g++)
        DPT_ASSERT(c->groups[g].done == c->groups[g].posted);
    bool woken;
    struct dpt_err ignored; /* the loop ends after any failure */
    if (dpt_nccl_comm_barrier(c, &ignored) != DPT_OK) {
        dpt_nccl_comm_quit(c);
        return;
    }
    dpt_nccl_machine_close(c->machine);
    while (dpt_nccl_machine_step(c->machine, NULL) == DPT_INPROGRESS)
        if (dpt_nccl_comm_poll_control(c, DPT_NCCL_NAP_NS, &woken, &ignored) != DPT_OK) {
            dpt_nccl_comm_stop(c, -1); /* a peer is lost, or an abort has come */
            break;
        }
    c->kept = 0;
    dpt_nccl_comm_reset(c);
}

void dpt_nccl_comm_quit(struct dpt_nccl_comm *c)
{
    if (c->control == NULL)
        return;
    const bool keep = c->built && dpt_nccl_machine_can_shrink(c->machine);
    dpt_nccl_comm_stop(c, keep ? c->world_at : -1);
    dpt_nccl_comm_reset(c);
}
