/* The chunks in which the host reducer (host_reducer.h) reduces buckets, and the memory that it
 * registers for them. The functions read spec->piece_bytes and, of spec->of, buckets, n_buckets,
 * block, world, rank, wire and shards. Pure. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_HOST_CHUNKS_H
#define DPT_WORKER_STRATEGY_REDUCE_HOST_CHUNKS_H

#include "checkpoint/layout/layout.h"
#include "worker/strategy/reduce/host_reducer.h"

/* A run of a bucket's elements; with `shards` a part of each of the bucket's pieces. */
struct dpt_host_chunk {
    int bucket;
    int64_t first, end; /* elements of the flat gradient */
    /* Which part of every piece of [first, end); 0 of 1 unless the sums stay in shards. */
    int part, n_parts;
    int64_t narrow_at; /* element of `narrow` at which this rank's piece begins */
};

/* The number of chunks of a bucket, and chunk `i` of `n`. */
int64_t dpt_host_chunks_of(const struct dpt_host_reducer_spec *spec,
                           const struct dpt_bucket *bucket);
struct dpt_host_chunk dpt_host_chunk(const struct dpt_host_reducer_spec *spec, int bucket,
                                     int64_t i, int64_t n);

/* The elements of the flat gradient that piece `piece` of a chunk has. */
struct dpt_interval dpt_host_chunk_piece(const struct dpt_host_reducer_spec *spec,
                                         const struct dpt_host_chunk *chunk, int piece);

/* Bytes of the registered memory that the reducer allocates beside the lane buffers: of each of
 * DPT_HOST_REDUCER_STAGINGS buffers for sums that arrive from other hosts, and of this rank's sums
 * in the wire's 16 bits; 0: none. The memory formula reads it too. */
struct dpt_host_reducer_memory {
    size_t staging, narrow;
};
struct dpt_host_reducer_memory dpt_host_reducer_memory(const struct dpt_host_reducer_spec *spec);

#endif
