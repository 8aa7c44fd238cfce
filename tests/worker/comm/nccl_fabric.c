/* A double of NCCL among threads (nccl_fabric.h). */
#include "tests/worker/comm/nccl_fabric.h"

#include "tests/worker/comm/comm_world.h"

#include "base/clock.h"

#include <string.h>

enum { TEAR_MS = 20000 }; /* for all to ask, of a clique that tears */

struct fabric_stream {
    struct fabric_handle *handle; /* that it takes operations from */
};

void fabric_init(struct fabric *fabric)
{
    memset(fabric, 0, sizeof *fabric);
    CHECK(pthread_mutex_init(&fabric->mutex, NULL) == 0);
}

void fabric_fini(struct fabric *fabric)
{
    CHECK(fabric->live == 0);
    CHECK(fabric->live_streams == 0);
    pthread_mutex_destroy(&fabric->mutex);
}

int fabric_live(struct fabric *fabric)
{
    CHECK(pthread_mutex_lock(&fabric->mutex) == 0);
    const int live = fabric->live;
    CHECK(pthread_mutex_unlock(&fabric->mutex) == 0);
    return live;
}

static struct fabric *lock(struct fabric_rank *self)
{
    CHECK(pthread_mutex_lock(&self->fabric->mutex) == 0);
    return self->fabric;
}

static enum dpt_nccl_result unlock(struct fabric_rank *self, enum dpt_nccl_result result)
{
    CHECK(pthread_mutex_unlock(&self->fabric->mutex) == 0);
    return result;
}

static struct fabric_handle *fabric_handle_of(struct dpt_nccl_handle *handle)
{
    struct fabric_handle *h = (struct fabric_handle *)(void *)handle;
    CHECK(h != NULL && h->used && !h->gone);
    return h;
}

static struct clique *new_clique(struct fabric *f)
{
    CHECK(f->n_cliques < FABRIC_CLIQUES_MAX);
    return &f->cliques[f->n_cliques++];
}

static struct fabric_handle *join(struct fabric *f, struct clique *clique, int rank)
{
    CHECK(rank >= 0 && rank < FABRIC_RANKS_MAX);
    struct fabric_handle *h = &clique->members[rank];
    CHECK(!h->used);
    *h = (struct fabric_handle){.used = true, .clique = clique, .rank = rank};
    f->live++;
    return h;
}

static int64_t fabric_now(void *ctx)
{
    (void)ctx;
    return dpt_now_ms();
}

static void fabric_pause(void *ctx)
{
    (void)ctx;
    let_pass_us(50);
}

static enum dpt_nccl_result fabric_id(void *ctx, uint8_t ret[DPT_NCCL_ID_BYTES])
{
    struct fabric *f = lock(ctx);
    memset(ret, 0, DPT_NCCL_ID_BYTES);
    f->ids++;
    memcpy(ret, &f->ids, sizeof f->ids);
    return unlock(ctx, ((struct fabric_rank *)ctx)->fault == FABRIC_NO_ID ? DPT_NCCL_ESYSTEM
                                                                          : DPT_NCCL_OK);
}

static enum dpt_nccl_result fabric_create(void *ctx, int size, const uint8_t id[DPT_NCCL_ID_BYTES],
                                          int rank, struct dpt_nccl_place *ret)
{
    struct fabric_rank *self = ctx;
    struct fabric *f = lock(self);
    struct clique *clique = NULL;
    for (int i = 0; i < f->n_cliques; i++)
        if (f->cliques[i].parent == NULL && memcmp(f->cliques[i].id, id, DPT_NCCL_ID_BYTES) == 0)
            clique = &f->cliques[i];
    if (clique == NULL) {
        clique = new_clique(f);
        memcpy(clique->id, id, DPT_NCCL_ID_BYTES);
        clique->size = clique->calls_wanted = size;
    }
    CHECK(clique->size == size);
    self->inits++;
    struct fabric_handle *h = join(f, clique, rank);
    h->failed = self->fault == FABRIC_FAILS_IN_INIT;
    clique->tears = clique->tears || self->fault == FABRIC_TEARS_IN_INIT;
    clique->n_calls += self->fault == FABRIC_WELL || self->fault > FABRIC_TEARS_IN_INIT;
    clique->complete = clique->n_calls == clique->calls_wanted;
    atomic_store(&ret->handle, (struct dpt_nccl_handle *)(void *)h);
    return unlock(self, DPT_NCCL_INPROGRESS);
}

/* The child that ranks of `parent` are making: of this color, by calls of this number. */
static struct clique *child_of(struct fabric *f, const struct fabric_handle *parent, int color,
                               int calls_wanted)
{
    for (int i = 0; i < f->n_cliques; i++) {
        struct clique *c = &f->cliques[i];
        if (c->parent == parent->clique && c->color == color && !c->complete &&
            c->callers[parent->rank] == NULL)
            return c;
    }
    struct clique *c = new_clique(f);
    c->parent = parent->clique;
    c->color = color;
    c->calls_wanted = calls_wanted;
    return c;
}

static void call_child(struct clique *child, struct fabric_handle *parent,
                       struct dpt_nccl_place *ret)
{
    CHECK(parent->child == NULL);
    child->callers[parent->rank] = parent;
    child->n_calls++;
    parent->child = child;
    parent->place = ret;
    child->complete = child->n_calls == child->calls_wanted;
}

static enum dpt_nccl_result fabric_split(void *ctx, struct dpt_nccl_handle *handle, int color,
                                         int key, struct dpt_nccl_place *ret)
{
    struct fabric *f = lock(ctx);
    struct fabric_handle *parent = fabric_handle_of(handle);
    CHECK(parent->clique->complete && !parent->revoked);
    /* All colors of one split meet in one clique, which is cut when all have called. */
    struct clique *child = child_of(f, parent, -1, parent->clique->size);
    child->colors[parent->rank] = color;
    child->keys[parent->rank] = key;
    call_child(child, parent, ret);
    return unlock(ctx, DPT_NCCL_INPROGRESS);
}

static enum dpt_nccl_result fabric_shrink(void *ctx, struct dpt_nccl_handle *handle,
                                          const int *excluded, int n_excluded,
                                          struct dpt_nccl_place *ret)
{
    struct fabric_rank *self = ctx;
    struct fabric *f = lock(self);
    struct fabric_handle *parent = fabric_handle_of(handle);
    CHECK(parent->revoked);
    self->shrinks++;
    if (self->fault == FABRIC_NO_SHRINK)
        return unlock(self, DPT_NCCL_EINTERNAL);
    int color = 0; /* the same for all ranks that exclude the same */
    for (int i = 0; i < n_excluded; i++) {
        CHECK(excluded[i] != parent->rank);
        color |= 1 << excluded[i];
    }
    struct clique *child = child_of(f, parent, color, parent->clique->size - n_excluded);
    call_child(child, parent, ret);
    return unlock(self, DPT_NCCL_INPROGRESS);
}

/* The rank's handle in the child, now that all have called. */
static void end_child(struct fabric *f, struct fabric_handle *parent)
{
    struct clique *child = parent->child;
    const bool split = child->color == -1;
    struct clique *into = child;
    int rank = 0, size = 0;
    for (int r = 0; r < FABRIC_RANKS_MAX; r++) {
        if (child->callers[r] == NULL || (split && child->colors[r] != child->colors[parent->rank]))
            continue;
        size++;
        if (split && child->keys[r] != child->keys[parent->rank])
            rank += child->keys[r] < child->keys[parent->rank];
        else
            rank += r < parent->rank;
    }
    if (split) { /* one clique a color, made by the first of it */
        into = NULL;
        for (int i = 0; i < f->n_cliques; i++)
            if (f->cliques[i].parent == child && f->cliques[i].color == child->colors[parent->rank])
                into = &f->cliques[i];
        if (into == NULL) {
            into = new_clique(f);
            into->parent = child;
            into->color = child->colors[parent->rank];
            into->complete = into->is_split = true;
        }
    }
    into->size = size;
    struct fabric_handle *h = join(f, into, rank);
    atomic_store(&parent->place->handle, (struct dpt_nccl_handle *)(void *)h);
    parent->child = NULL;
}

/* Of a clique that tears: none hears of it before the others may. They leave together, and two of
 * them, at least, at one moment. */
static void await_tear(struct fabric_rank *self, struct fabric_handle *h)
{
    struct clique *clique = h->clique;
    atomic_fetch_add(&clique->n_asked, !h->asked);
    h->asked = true;
    (void)unlock(self, DPT_NCCL_OK);
    const int64_t until_ms = dpt_now_ms() + TEAR_MS;
    while (atomic_load(&clique->n_asked) < clique->size)
        CHECK(dpt_now_ms() < until_ms);
    (void)lock(self);
    clique->torn = true;
}

static enum dpt_nccl_result fabric_async_error(void *ctx, struct dpt_nccl_handle *handle)
{
    struct fabric *f = lock(ctx);
    struct fabric_handle *h = fabric_handle_of(handle);
    if (h->clique->tears && !h->clique->torn)
        await_tear(ctx, h);
    enum dpt_nccl_result result = h->failed || h->clique->torn ? DPT_NCCL_ESYSTEM
                                  : h->clique->complete        ? DPT_NCCL_OK
                                                               : DPT_NCCL_INPROGRESS;
    if (h->child != NULL && h->child->complete)
        end_child(f, h);
    else if (h->child != NULL)
        result = DPT_NCCL_INPROGRESS;
    if (h->finalized)
        for (int r = 0; r < h->clique->size; r++)
            if (!h->clique->members[r].finalized)
                result = DPT_NCCL_INPROGRESS;
    return unlock(ctx, result);
}

static enum dpt_nccl_result fabric_revoke(void *ctx, struct dpt_nccl_handle *handle)
{
    struct fabric_rank *self = ctx;
    (void)lock(self);
    struct fabric_handle *h = fabric_handle_of(handle);
    if (self->fault == FABRIC_NO_REVOKE)
        return unlock(self, DPT_NCCL_EUSAGE);
    h->revoked = true;
    h->n_pieces = 0;
    return unlock(self, DPT_NCCL_INPROGRESS);
}

static enum dpt_nccl_result fabric_finalize(void *ctx, struct dpt_nccl_handle *handle)
{
    struct fabric *f = lock(ctx);
    CHECK(atomic_load(&f->closing) >= f->closing_min);
    fabric_handle_of(handle)->finalized = true;
    return unlock(ctx, DPT_NCCL_INPROGRESS);
}

static enum dpt_nccl_result fabric_free(void *ctx, struct dpt_nccl_handle *handle)
{
    struct fabric *f = lock(ctx);
    struct fabric_handle *h = fabric_handle_of(handle);
    if (h->child != NULL) { /* it will not come to be */
        h->child->callers[h->rank] = NULL;
        h->child->n_calls--;
    }
    h->gone = true;
    h->clique->torn = h->clique->torn || h->failed;
    h->n_pieces = 0;
    f->live--;
    return unlock(ctx, DPT_NCCL_OK);
}

/* Operations. */

static enum dpt_nccl_result fabric_group_start(void *ctx)
{
    struct fabric_rank *self = ctx;
    CHECK(self->grouped == NULL);
    self->n_pieces = 0;
    return DPT_NCCL_OK;
}

static enum dpt_nccl_result fabric_post(void *ctx, struct dpt_nccl_handle *handle,
                                        const struct dpt_nccl_piece *piece,
                                        struct dpt_nccl_stream *stream)
{
    struct fabric_rank *self = ctx;
    struct fabric_handle *h = fabric_handle_of(handle);
    const bool sums = piece->kind == DPT_NCCL_ALL_REDUCE && piece->dtype == DPT_NCCL_F32;
    const bool send = piece->kind == DPT_NCCL_SEND;
    if (!sums && !send && piece->kind != DPT_NCCL_RECV)
        return DPT_NCCL_EUSAGE;
    CHECK(self->n_pieces < FABRIC_PIECES_MAX && (self->grouped == NULL || self->grouped == h));
    CHECK(sums || (piece->peer >= 0 && piece->peer < h->clique->size && piece->peer != h->rank));
    self->grouped = h;
    ((struct fabric_stream *)(void *)stream)->handle = h;
    self->pieces[self->n_pieces++] =
        (struct fabric_piece){.send = send,
                              .sums = sums,
                              .peer = sums ? 0 : piece->peer,
                              .from = piece->from,
                              .to = piece->to,
                              .bytes = piece->count * (sums ? sizeof(float) : 1)};
    return DPT_NCCL_OK;
}

/* The piece of `peer`'s present operation that answers `piece`, the k-th of its kind with us. */
static struct fabric_piece *answer(struct fabric_handle *h, const struct fabric_piece *piece)
{
    struct fabric_handle *peer = &h->clique->members[piece->peer];
    int k = 0;
    if (!peer->used || peer->gone || peer->with[h->rank] != h->with[piece->peer])
        return NULL;
    for (const struct fabric_piece *p = h->pieces; p < piece; p++)
        k += p->send == piece->send && p->peer == piece->peer;
    for (int i = 0; i < peer->n_pieces; i++)
        if (peer->pieces[i].send != piece->send && peer->pieces[i].peer == h->rank && k-- == 0)
            return &peer->pieces[i];
    return NULL;
}

static void copy(const struct fabric *f, void *to, const void *from, size_t bytes)
{
    if (f->devices.copy != NULL)
        f->devices.copy(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* An all-reduce, when every rank has reached it; it is the only piece of its operation. The last
 * rank's part is added first: callers may not rely on an order. */
static void sum_pieces(struct fabric *f, struct clique *clique)
{
    const struct fabric_piece *first = &clique->members[0].pieces[0];
    const size_t n = first->bytes / sizeof(float);
    for (int r = 0; r < clique->size; r++) {
        const struct fabric_handle *h = &clique->members[r];
        if (!h->used || h->gone || h->ops != clique->members[0].ops || h->n_pieces != 1)
            return;
        CHECK(h->pieces[0].sums && h->pieces[0].bytes == first->bytes);
    }
    float *sum = calloc(2 * n, sizeof *sum), *part = sum + n;
    CHECK(sum != NULL);
    for (int r = clique->size - 1; r >= 0; r--) {
        copy(f, part, clique->members[r].pieces[0].from, first->bytes);
        for (size_t i = 0; i < n; i++)
            sum[i] += part[i];
    }
    for (int r = 0; r < clique->size; r++) {
        struct fabric_piece *piece = &clique->members[r].pieces[0];
        copy(f, piece->to, sum, piece->bytes);
        piece->moved = true;
    }
    free(sum);
}

/* Moves the bytes that both sides have put into their streams. True if all of `h` has moved. */
static bool move_pieces(struct fabric *f, struct fabric_handle *h)
{
    bool all = true;
    for (int i = 0; i < h->n_pieces; i++) {
        struct fabric_piece *piece = &h->pieces[i];
        if (piece->sums && !piece->moved)
            sum_pieces(f, h->clique);
        struct fabric_piece *other = piece->moved || piece->sums ? NULL : answer(h, piece);
        if (other != NULL) {
            CHECK(other->bytes == piece->bytes);
            copy(f, piece->send ? other->to : piece->to, piece->send ? piece->from : other->from,
                 piece->bytes);
            f->bytes += piece->bytes;
            f->split_bytes += h->clique->is_split ? piece->bytes : 0;
            piece->moved = other->moved = true;
        }
        all &= piece->moved;
    }
    return all;
}

static enum dpt_nccl_result fabric_group_end(void *ctx)
{
    struct fabric_rank *self = ctx;
    struct fabric_handle *h = self->grouped;
    self->grouped = NULL;
    if (h == NULL) /* its one piece was refused */
        return DPT_NCCL_OK;
    (void)lock(self);
    CHECK(h->n_pieces == 0 && !h->revoked && h->clique->complete);
    memcpy(h->pieces, self->pieces, sizeof h->pieces);
    h->n_pieces = self->n_pieces;
    h->ops++;
    bool counted[FABRIC_RANKS_MAX] = {false};
    for (int i = 0; i < h->n_pieces; i++) {
        const struct fabric_piece *piece = &h->pieces[i];
        if (!piece->sums && !counted[piece->peer])
            h->with[piece->peer]++;
        counted[piece->peer] = !piece->sums;
    }
    h->failed = self->fault == FABRIC_FAILS_LATE && self->ops++ == self->fails_at;
    (void)move_pieces(self->fabric, h);
    return unlock(self, DPT_NCCL_INPROGRESS);
}

static enum dpt_nccl_result fabric_stream_query(void *ctx, struct dpt_nccl_stream *stream)
{
    struct fabric_rank *self = ctx;
    (void)lock(ctx);
    struct fabric_handle *h = ((struct fabric_stream *)(void *)stream)->handle;
    if (h == NULL)
        return unlock(ctx, DPT_NCCL_OK);
    const bool all = move_pieces(self->fabric, h);
    if (all)
        h->n_pieces = 0;
    return unlock(ctx, all ? DPT_NCCL_OK : DPT_NCCL_INPROGRESS);
}

static const char *fabric_last_error(void *ctx, struct dpt_nccl_handle *handle)
{
    (void)ctx;
    (void)handle;
    return "a fault of the test";
}

static enum dpt_nccl_result fabric_stream_create(void *ctx, struct dpt_nccl_stream **ret)
{
    struct fabric *f = lock(ctx);
    struct fabric_stream *stream = calloc(1, sizeof *stream);
    CHECK(stream != NULL);
    f->live_streams++;
    *ret = (struct dpt_nccl_stream *)(void *)stream;
    return unlock(ctx, DPT_NCCL_OK);
}

static void fabric_stream_destroy(void *ctx, struct dpt_nccl_stream *stream)
{
    struct fabric *f = lock(ctx);
    f->live_streams--;
    free(stream);
    (void)unlock(ctx, DPT_NCCL_OK);
}

static enum dpt_nccl_result fabric_stream_after(void *ctx, struct dpt_nccl_stream *stream,
                                                void *event)
{
    struct fabric_rank *self = ctx;
    (void)stream;
    if (event != NULL && self->fabric->devices.await != NULL)
        self->fabric->devices.await(event);
    return event != NULL ? DPT_NCCL_OK : DPT_NCCL_ECUDA;
}

const struct dpt_nccl_calls fabric_calls = {
    .now_ms = fabric_now,
    .pause = fabric_pause,
    .unique_id = fabric_id,
    .init = fabric_create,
    .split = fabric_split,
    .shrink = fabric_shrink,
    .async_error = fabric_async_error,
    .revoke = fabric_revoke,
    .finalize = fabric_finalize,
    .destroy = fabric_free,
    .abort = fabric_free,
    .group_start = fabric_group_start,
    .group_end = fabric_group_end,
    .post = fabric_post,
    .last_error = fabric_last_error,
    .stream_create = fabric_stream_create,
    .stream_destroy = fabric_stream_destroy,
    .stream_after = fabric_stream_after,
    .stream_query = fabric_stream_query,
};
