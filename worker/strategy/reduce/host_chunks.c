/* Cuts buckets into chunks (host_chunks.h).
 *
 * Inside one host a bucket is reduced in chunks: a peer that aborts has to wait until the others
 * stop writing into its memory, and a chunk keeps that wait short. Between hosts a bucket is one
 * chunk, because each message has a cost, unless sums stay in shards. The borders of chunks change
 * no sum. */
#include "worker/strategy/reduce/host_chunks.h"

#include "worker/plan/partition.h"

/* Elements of a chunk. */
static int64_t chunk_numel(const struct dpt_host_reducer_spec *spec)
{
    const bool has_hosts = dpt_world_host(spec->of.world, 0).end < spec->of.world->size;
    if (has_hosts && !spec->of.shards)
        return INT64_MAX / 2;
    const size_t bytes = spec->piece_bytes > 0 ? spec->piece_bytes : DPT_HOST_REDUCER_PIECE_BYTES;
    const int64_t blocks = (int64_t)(bytes / sizeof(float)) / spec->of.block;
    return (blocks > 0 ? blocks : 1) * spec->of.block * spec->of.world->size;
}

int64_t dpt_host_chunks_of(const struct dpt_host_reducer_spec *spec,
                           const struct dpt_bucket *bucket)
{
    const int64_t most = chunk_numel(spec), numel = bucket->end - bucket->first;
    return numel / most + (numel % most > 0);
}

struct dpt_host_chunk dpt_host_chunk(const struct dpt_host_reducer_spec *spec, int bucket,
                                     int64_t i, int64_t n)
{
    const struct dpt_bucket *b = &spec->of.buckets[bucket];
    const int64_t most = chunk_numel(spec);
    if (spec->of.shards)
        return (struct dpt_host_chunk){bucket, b->first, b->end, (int)i, (int)n, 0};
    const int64_t first = b->first + i * most, end = first + most;
    return (struct dpt_host_chunk){bucket, first, end < b->end ? end : b->end, 0, 1, 0};
}

struct dpt_interval dpt_host_chunk_piece(const struct dpt_host_reducer_spec *spec,
                                         const struct dpt_host_chunk *chunk, int piece)
{
    const int64_t block = spec->of.block, first = chunk->first;
    const struct dpt_interval whole =
        dpt_layout_piece(chunk->end - first, block, spec->of.world->size, piece);
    const struct dpt_interval part = dpt_part_of(whole, block, chunk->part, chunk->n_parts);
    return (struct dpt_interval){first + part.first, first + part.end};
}

struct dpt_host_reducer_memory dpt_host_reducer_memory(const struct dpt_host_reducer_spec *spec)
{
    const struct dpt_world *world = spec->of.world;
    const size_t width = dpt_dtype_bytes(spec->of.wire);
    const int position = dpt_world_position(world, spec->of.rank);
    struct dpt_range host, cover[DPT_COVER_MAX];
    int sums = 0; /* that arrive from other hosts, for each chunk */
    int64_t most = 0, all = 0;
    for (int at = 0; at < world->size; at = host.end) {
        host = dpt_world_host(world, at);
        if (position < host.first || position >= host.end)
            sums += dpt_tree_cover(world->lanes, dpt_world_lanes(world, host), cover);
    }
    for (int b = 0; sums > 0 && b < spec->of.n_buckets; b++) {
        const int64_t n = dpt_host_chunks_of(spec, &spec->of.buckets[b]);
        for (int64_t i = 0; i < n; i++) {
            const struct dpt_host_chunk chunk = dpt_host_chunk(spec, b, i, n);
            const struct dpt_interval own = dpt_host_chunk_piece(spec, &chunk, spec->of.rank);
            most = own.end - own.first > most ? own.end - own.first : most;
            all += own.end - own.first;
        }
    }
    const bool narrows = spec->of.wire != DPT_F32 && !spec->of.shards;
    return (struct dpt_host_reducer_memory){.staging = (size_t)(sums * most) * width,
                                            .narrow = narrows ? (size_t)all * width : 0};
}
