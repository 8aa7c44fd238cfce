/* The sizes in which the CPU device cuts its work, and so the memory that its ops work in:
 * kernels/cpu computes with them, worker/strategy/memory computes the bytes from them.
 * They decide the order of sums, and so the bits. */
#ifndef DPT_KERNELS_CPU_SIZES_H
#define DPT_KERNELS_CPU_SIZES_H

enum {
    /* A tile of a product's result. The library blocks b in 64 columns, of which the tile has a
     * whole number. A tile of b with k = 768 and one of c stay in a second-level cache of 1 MiB. */
    DPT_TILE_M = 128,
    DPT_TILE_N = 192,
    /* With fewer tiles along a side, a separate loop packs that operand ahead, so that several
     * threads can share it. With more, each item packs the tile that it multiplies, while the
     * tile is in the cache. */
    DPT_PACK_AHEAD_TILES = 32,
    /* Rows of the head whose logits exist at once. Each chunk packs the weights and adds to their
     * gradient; where products are twice as fast, that weighs twice, and the chunk is twice as
     * large. */
    DPT_HEAD_ROWS_F32 = 256,
    DPT_HEAD_ROWS_HALF = 512,
    DPT_HEAD_COLUMNS = 3072, /* of the vocabulary, in one product */
    /* Of the gradient of a convolution's weight: pixels that are multiplied at once, with a tile as
     * large as a second-level cache of 1 MiB holds, and items, enough for so many threads. */
    DPT_CONV_PIXELS = 512,
    DPT_CONV_ITEMS = 16,
    DPT_BATCHNORM_ROWS = 32 /* that are summed at once */
};

#endif
