/* The sizes of the pieces into which the CPU device cuts its work. They decide the workspace of its
 * ops, the order of sums, and so the bits. kernels/cpu computes with them, worker/strategy/memory
 * computes the bytes from them. */
#ifndef DPT_KERNELS_CPU_SIZES_H
#define DPT_KERNELS_CPU_SIZES_H

enum {
    /* The size of a tile of a product's result. The library blocks b in units of 64 columns, and a
     * tile has a whole number of units. A tile of b with k = 768 and a tile of c fit together into
     * a second-level cache of 1 MiB. */
    DPT_TILE_M = 128,
    DPT_TILE_N = 192,
    /* With fewer tiles along a side, a separate loop packs that operand ahead, so that several
     * threads can share it. With more tiles, each item packs the tile that it multiplies, while the
     * tile is in the cache. */
    DPT_PACK_AHEAD_TILES = 32,
    /* Rows of the head whose logits exist at once: one chunk. Each chunk packs the weights and adds
     * to their gradient. This costs relatively twice as much where products are twice as fast, so
     * the chunk is twice as large for 16-bit elements. */
    DPT_HEAD_ROWS_F32 = 256,
    DPT_HEAD_ROWS_HALF = 512,
    DPT_HEAD_COLUMNS = 3072, /* columns of the vocabulary in one product */
    /* For the gradient of a convolution's weight. PIXELS: pixels in one product, so that a tile
     * fits into a second-level cache of 1 MiB. ITEMS: the number of items of work that the op aims
     * at, so that as many threads have work. */
    DPT_CONV_PIXELS = 512,
    DPT_CONV_ITEMS = 16,
    DPT_BATCHNORM_ROWS = 32 /* rows summed in one chunk */
};

#endif
