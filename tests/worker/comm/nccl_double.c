/* A double of NCCL for one rank (nccl_double.h). */
#include "tests/worker/comm/nccl_double.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nccl_double_broken(const struct nccl_double *d, const char *file, int line, const char *rule)
{
    (void)fprintf(stderr, "%s:%d: broken: %s (seed %llu, at %lld ms, call %d)\n", file, line, rule,
                  (unsigned long long)d->seed, (long long)d->now_ms, d->n_calls);
    abort();
}

static int64_t after(const struct nccl_double *d, int ms)
{
    return ms == NEVER ? INT64_MAX : d->now_ms + ms;
}

/* Every call to the library begins so. */
static struct nccl_double *enter(void *ctx)
{
    struct nccl_double *d = ctx;
    d->n_calls++;
    /* Every call is made under the guard. */
    RULE(d, atomic_load(&d->guard.until_ms) != INT64_MAX);
    return d;
}

/* A call that takes this long; one that exceeds its limit loses the process. */
static void take(struct nccl_double *d, int ms)
{
    const char *what;
    const int64_t until = atomic_load(&d->guard.until_ms);
    RULE(d, until >= d->now_ms && until <= d->now_ms + 2 * DOUBLE_TIMEOUT_MS);
    d->now_ms = ms == NEVER ? until + DOUBLE_TIMEOUT_MS / 8 : d->now_ms + ms;
    if (dpt_nccl_guard_expired(&d->guard, d->now_ms, &what)) {
        dpt_nccl_guard_leave(&d->guard); /* with the process */
        dpt_nccl_guard_lost(&d->guard, what);
    }
    RULE(d, ms != NEVER);
}

static struct double_handle *use_handle(struct nccl_double *d, struct dpt_nccl_handle *handle)
{
    struct double_handle *h = (struct double_handle *)(void *)handle;
    RULE(d, h != NULL && h->used);
    RULE(d, !h->freed);
    return h;
}

static struct double_handle *new_handle(struct nccl_double *d)
{
    RULE(d, d->n_handles < DOUBLE_HANDLES_MAX);
    struct double_handle *h = &d->handles[d->n_handles++];
    *h = (struct double_handle){.used = true,
                                .state = IN_CREATION,
                                .script = d->script,
                                .done_ms = after(d, d->script.create_ms),
                                .ends = d->script.create_ends};
    return h;
}

static void publish(struct double_handle *h)
{
    atomic_store(&h->place->handle, (struct dpt_nccl_handle *)(void *)h);
}

/* Completes everything that is due. */
static void advance(struct nccl_double *d, struct double_handle *h)
{
    if (h->error != DPT_NCCL_OK || d->now_ms < h->done_ms)
        return;
    switch (h->state) {
    case IN_LAUNCH:
        h->state = IN_OPERATION;
        h->done_ms = after(d, h->script.op_ms);
        h->ends = h->script.op_ends;
        /* The kernel of an operation that fails never ends. */
        h->stream->idle_ms = h->ends == DPT_NCCL_OK ? h->done_ms : INT64_MAX;
        return;
    case IN_OPERATION:
        h->error = h->ends;
        h->ops_done += h->ends == DPT_NCCL_OK;
        break;
    case IN_REVOKE:
        h->error = h->ends;
        h->quiet = h->ends == DPT_NCCL_OK;
        break;
    case IN_FINALIZE:
        h->error = h->ends;
        h->state = FINAL;
        h->done_ms = INT64_MAX;
        return;
    case IN_CREATION:
        h->error = h->ends;
        break;
    case AT_REST:
    case FINAL:
        return;
    }
    h->state = AT_REST;
    h->done_ms = INT64_MAX;
}

/* A child that is being made ends when its time has come, or with its parent. */
static void end_child(struct nccl_double *d, struct double_handle *parent, bool cut)
{
    struct double_handle *child = parent->child;
    if (child == NULL || (!cut && d->now_ms < child->done_ms))
        return;
    const bool well = !cut && child->ends == DPT_NCCL_OK;
    if (well || child->script.child_left) {
        publish(child);
        child->state = AT_REST;
        child->error = well ? DPT_NCCL_OK : DPT_NCCL_EREMOTE;
    } else {
        child->freed = true;
    }
    if (!well)
        parent->error = cut ? DPT_NCCL_EUSAGE : child->ends;
    child->done_ms = INT64_MAX;
    parent->child = NULL;
}

static int64_t double_now(void *ctx)
{
    const struct nccl_double *d = ctx;
    return d->now_ms;
}

static void double_pause(void *ctx)
{
    struct nccl_double *d = ctx;
    d->now_ms++;
}

static enum dpt_nccl_result double_id(void *ctx, uint8_t ret[DPT_NCCL_ID_BYTES])
{
    struct nccl_double *d = enter(ctx);
    memset(ret, 1, DPT_NCCL_ID_BYTES);
    return d->script.id;
}

static bool posted(enum dpt_nccl_result result)
{
    return result == DPT_NCCL_OK || result == DPT_NCCL_INPROGRESS;
}

static enum dpt_nccl_result double_init(void *ctx, int size, const uint8_t id[DPT_NCCL_ID_BYTES],
                                        int rank, struct dpt_nccl_place *ret)
{
    struct nccl_double *d = enter(ctx);
    RULE(d, d->group == 0 && rank >= 0 && rank < size && id != NULL);
    if (!posted(d->script.create) && !d->script.child_left)
        return d->script.create;
    struct double_handle *h = new_handle(d);
    h->place = ret;
    publish(h);
    return d->script.create;
}

static enum dpt_nccl_result make_child(struct nccl_double *d, struct double_handle *parent,
                                       struct dpt_nccl_place *ret)
{
    RULE(d, d->group == 0 && parent->child == NULL);
    if (!posted(d->script.create))
        return d->script.create;
    struct double_handle *h = new_handle(d);
    h->parent = parent;
    h->place = ret;
    parent->child = h;
    return d->script.create;
}

static enum dpt_nccl_result double_split(void *ctx, struct dpt_nccl_handle *handle, int color,
                                         int key, struct dpt_nccl_place *ret)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *parent = use_handle(d, handle);
    advance(d, parent);
    RULE(d, parent->state == AT_REST && !parent->revoke_tried && color >= 0 && key >= 0);
    return make_child(d, parent, ret);
}

static enum dpt_nccl_result double_shrink(void *ctx, struct dpt_nccl_handle *handle,
                                          const int *excluded, int n_excluded,
                                          struct dpt_nccl_place *ret)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *parent = use_handle(d, handle);
    RULE(d, parent->quiet && n_excluded > 0);
    RULE(d, parent->stream == NULL || parent->stream->idle_ms <= d->now_ms);
    for (int i = 1; i < n_excluded; i++)
        RULE(d, excluded[i] > excluded[i - 1]);
    return make_child(d, parent, ret);
}

static enum dpt_nccl_result double_async_error(void *ctx, struct dpt_nccl_handle *handle)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    if (h->child != NULL) {
        end_child(d, h, false);
        if (h->child != NULL)
            return DPT_NCCL_INPROGRESS;
    }
    advance(d, h);
    if (h->error != DPT_NCCL_OK)
        return h->error;
    h->launching = h->launching && h->state == IN_LAUNCH;
    const bool works = h->state == IN_CREATION || h->state == IN_LAUNCH || h->state == IN_REVOKE ||
                       h->state == IN_FINALIZE;
    return works ? DPT_NCCL_INPROGRESS : DPT_NCCL_OK;
}

static enum dpt_nccl_result double_revoke(void *ctx, struct dpt_nccl_handle *handle)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    RULE(d, !h->revoke_tried && h->state != IN_FINALIZE && h->state != FINAL && h->child == NULL &&
                h->state != IN_CREATION && !h->launching);
    h->revoke_tried = true;
    d->n_revokes++;
    take(d, d->script.revoke_takes_ms);
    advance(d, h);
    if (!posted(d->script.revoke))
        return d->script.revoke;
    h->state = IN_REVOKE;
    h->error = DPT_NCCL_OK;
    h->done_ms = after(d, d->script.revoke_ms);
    h->ends = d->script.revoke_ends;
    /* Kernels end early: their stream gets idle though nothing is done, perhaps a little later. */
    const int drain_ms = d->script.drain_ms == NEVER ? 0 : d->script.drain_ms;
    if (h->stream != NULL && d->script.revoke_ms != NEVER &&
        h->stream->idle_ms > h->done_ms + drain_ms)
        h->stream->idle_ms = h->done_ms + drain_ms;
    return DPT_NCCL_INPROGRESS;
}

static enum dpt_nccl_result double_finalize(void *ctx, struct dpt_nccl_handle *handle)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    advance(d, h);
    RULE(d, h->state == AT_REST && !h->revoke_tried && h->child == NULL);
    if (!posted(d->script.finalize))
        return d->script.finalize;
    h->state = IN_FINALIZE;
    h->done_ms = after(d, d->script.finalize_ms);
    h->ends = d->script.finalize_ends;
    return DPT_NCCL_INPROGRESS;
}

static void free_handle(struct nccl_double *d, struct double_handle *h)
{
    const bool at_rest = h->quiet || h->state == FINAL;
    for (int i = 0; !at_rest && d->calls.revoke != NULL && i < d->n_handles; i++) {
        const struct double_handle *other = &d->handles[i];
        RULE(d, other == h || other->freed || other->revoke_tried || other->child != NULL ||
                    other->launching || other->state == IN_CREATION ||
                    other->state == IN_FINALIZE || other->state == FINAL ||
                    other->error != DPT_NCCL_OK || other->parent != NULL);
    }
    end_child(d, h, true);
    h->freed = true;
    h->freed_call = d->n_calls;
}

static enum dpt_nccl_result double_destroy(void *ctx, struct dpt_nccl_handle *handle)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    RULE(d, h->state == FINAL && h->error == DPT_NCCL_OK);
    free_handle(d, h);
    d->n_destroys++;
    return DPT_NCCL_OK;
}

static enum dpt_nccl_result double_abort(void *ctx, struct dpt_nccl_handle *handle)
{
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    take(d, d->script.abort_takes_ms);
    free_handle(d, h);
    d->n_aborts++;
    if (h->stream != NULL && h->stream->idle_ms > d->now_ms)
        h->stream->idle_ms = after(d, d->script.drain_ms);
    return d->script.abort;
}

/* Operations. */

static enum dpt_nccl_result double_group_start(void *ctx)
{
    struct nccl_double *d = enter(ctx);
    RULE(d, d->group == 0);
    d->group = 1;
    d->grouped = NULL;
    d->group_failed = false;
    return DPT_NCCL_OK;
}

static enum dpt_nccl_result double_post(void *ctx, struct dpt_nccl_handle *handle,
                                        const struct dpt_nccl_piece *piece,
                                        struct dpt_nccl_stream *stream)
{
    (void)piece;
    struct nccl_double *d = enter(ctx);
    struct double_handle *h = use_handle(d, handle);
    struct double_stream *s = (struct double_stream *)(void *)stream;
    advance(d, h);
    RULE(d, d->group == 1 && (d->grouped == NULL || d->grouped == h));
    RULE(d, h->state == AT_REST && h->child == NULL && !h->revoke_tried);
    RULE(d, s->used && !s->freed && s->idle_ms <= d->now_ms);
    RULE(d, h->stream == NULL || h->stream == s);
    d->grouped = h;
    h->stream = s;
    d->group_failed |= !posted(d->script.op);
    return d->script.op;
}

static enum dpt_nccl_result double_group_end(void *ctx)
{
    struct nccl_double *d = enter(ctx);
    RULE(d, d->group == 1);
    d->group = 0;
    struct double_handle *h = d->grouped;
    RULE(d, h != NULL);
    h->launching = true; /* a group that failed may have left a part there */
    if (d->group_failed)
        return d->script.op;
    h->script = d->script;
    h->state = IN_LAUNCH;
    h->done_ms = after(d, d->script.launch_ms);
    h->ops_begun++;
    return DPT_NCCL_INPROGRESS;
}

static const char *double_last_error(void *ctx, struct dpt_nccl_handle *handle)
{
    if (handle != NULL)
        (void)use_handle(ctx, handle);
    return "as the script says";
}

static enum dpt_nccl_result double_stream_create(void *ctx, struct dpt_nccl_stream **ret)
{
    struct nccl_double *d = enter(ctx);
    if (d->script.stream_create != DPT_NCCL_OK)
        return d->script.stream_create;
    RULE(d, d->n_streams < DOUBLE_HANDLES_MAX);
    struct double_stream *s = &d->streams[d->n_streams++];
    *s = (struct double_stream){.used = true};
    *ret = (struct dpt_nccl_stream *)(void *)s;
    return DPT_NCCL_OK;
}

static void double_stream_destroy(void *ctx, struct dpt_nccl_stream *stream)
{
    struct nccl_double *d = enter(ctx);
    struct double_stream *s = (struct double_stream *)(void *)stream;
    RULE(d, s->used && !s->freed && (s->idle_ms <= d->now_ms || s->broken));
    s->freed = true;
}

static enum dpt_nccl_result double_stream_after(void *ctx, struct dpt_nccl_stream *stream,
                                                void *event)
{
    struct nccl_double *d = enter(ctx);
    const struct double_stream *s = (struct double_stream *)(void *)stream;
    RULE(d, s->used && !s->freed && event != NULL);
    return DPT_NCCL_OK;
}

static enum dpt_nccl_result double_stream_query(void *ctx, struct dpt_nccl_stream *stream)
{
    struct nccl_double *d = enter(ctx);
    const struct double_stream *s = (struct double_stream *)(void *)stream;
    RULE(d, s->used && !s->freed);
    if (s->broken)
        return DPT_NCCL_ECUDA;
    return s->idle_ms <= d->now_ms ? DPT_NCCL_OK : DPT_NCCL_INPROGRESS;
}

static void double_lost(void *ctx, const char *what, int limit_ms)
{
    struct nccl_double *d = ctx;
    RULE(d, limit_ms == DOUBLE_TIMEOUT_MS && d->lost_to != NULL);
    d->lost = what;
    longjmp(*d->lost_to, 1);
}

void nccl_double_init(struct nccl_double *d, uint64_t seed)
{
    memset(d, 0, sizeof *d);
    d->seed = seed;
    d->now_ms = 1000;
    d->script = (struct nccl_script){
        .create_ms = 5, .launch_ms = 1, .op_ms = 3, .revoke_ms = 4, .finalize_ms = 6};
    d->calls = (struct dpt_nccl_calls){.create_ms_min = DOUBLE_CREATE_MS,
                                       .now_ms = double_now,
                                       .pause = double_pause,
                                       .unique_id = double_id,
                                       .init = double_init,
                                       .split = double_split,
                                       .shrink = double_shrink,
                                       .async_error = double_async_error,
                                       .revoke = double_revoke,
                                       .finalize = double_finalize,
                                       .destroy = double_destroy,
                                       .abort = double_abort,
                                       .group_start = double_group_start,
                                       .group_end = double_group_end,
                                       .post = double_post,
                                       .last_error = double_last_error,
                                       .stream_create = double_stream_create,
                                       .stream_destroy = double_stream_destroy,
                                       .stream_after = double_stream_after,
                                       .stream_query = double_stream_query};
    dpt_nccl_guard_init(&d->guard, DOUBLE_TIMEOUT_MS);
    d->guard.lost = double_lost;
    d->guard.lost_ctx = d;
}

struct dpt_nccl_machine *nccl_double_machine(struct nccl_double *d)
{
    struct dpt_nccl_machine *n = NULL;
    RULE(d, dpt_nccl_machine_create(&d->calls, d, &d->guard, DOUBLE_RUN_MS, &n, NULL) == DPT_OK);
    return n;
}

struct double_handle *double_of(const struct dpt_nccl_machine *n, int comm)
{
    return (struct double_handle *)(void *)dpt_nccl_handle_of(&n->comms[comm]);
}

void nccl_double_check_clean(struct nccl_double *d)
{
    for (int i = 0; i < d->n_handles; i++) {
        const struct double_handle *h = &d->handles[i];
        RULE(d, h->freed);
    }
    for (int i = 0; i < d->n_streams; i++)
        RULE(d, d->streams[i].freed);
    RULE(d, d->group == 0);
    RULE(d, atomic_load(&d->guard.until_ms) == INT64_MAX);
}
