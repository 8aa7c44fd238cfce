/* The memory of a rank by formula (docs/strategies.md), for any strategy, order of addition,
 * precision and world, in whole blocks of 1024. The formulas read config and world, not
 * allocations; tests and dpt-bench compare them with the account (base/account.h). Pure. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_MEMORY_FORMULA_H
#define DPT_WORKER_STRATEGY_MEMORY_MEMORY_FORMULA_H

#include "base/account.h"
#include "checkpoint/layout/shard.h"
#include "worker/model/model.h"
#include "worker/plan/world.h"

/* All borrowed. */
struct dpt_memory_spec {
    const struct dpt_config *config;
    const struct dpt_model *model;
    const struct dpt_grid *grid; /* of the model's units */
    const struct dpt_world *world;
    int rank;
    int threads;        /* that it computes with: workspace */
    int packed_operand; /* weights are packed: bytes of an element there (dpt_ops.operand_bytes);
                           0: they are not */
};

/* Bytes of the host's memory, each tag, between the steps of a generation. With cluster.device cuda
 * what is on the GPU is not counted: activations, scratch and workspace; with the state there, too,
 * what is counted is the copy of it and what goes to peers, else a buffer of the largest unit, as
 * slot_gradients.
 *
 * Exact for the memory of a strategy, activations, scratch and data; workspace and comm are within
 * a few hundred KiB (memory that a thread packs at a time, links to peers); packed forms are those
 * of dpt_memory_packed. `checkpoint`, which a writer needs while it writes, and `other` are 0. */
void dpt_memory_formula(const struct dpt_memory_spec *spec, int64_t ret[DPT_MEMORY_COUNT]);

/* The same as one sum for a person to check: with P parameters, N ranks, w bytes of a parameter in
 * the compute dtype, k of the f32 master beside it (0 with f32, else 4), U the largest unit,
 *   ddp, no_shard          P (w + k + 12)                      (reduce: + 8 U)
 *   ddp's variants         P (w + k + 12)
 *   zero1                  P (w + 4) + P (k + 8) / N           (in waves: as zero2)
 *   zero2, shard_grad_op   P w + P (k + 12) / N + 8 U
 *   zero3, full_shard      P (w + k + 12) / N + 2 U (w + 4)
 *   hybrid_shard           P (w + k + 12) / h + 4 P / N + 2 U (w + 4), h ranks on the node
 *   with a shadow          + 16 P / N
 *   with train.lora        + B w, B parameters of the base; P are the adapters'
 * and what dpt_memory_formula says of all other tags. The largest shard counts. We hold no more,
 * but for the tied unit where that is not the largest (4 of it in waves, w of it where units are
 * gathered), and its gradient (4) where lanes of several slots are summed. */
int64_t dpt_memory_bound(const struct dpt_memory_spec *spec);

/* Bytes of the packed forms of all matrices that products read, with o bytes of an element there.
 * A matrix (in, out) is packed for two products: as the right-hand operand (in, out) of y = x w and
 * as that, (out, in), of dx = dy w^T; wte (V, C) likewise in blocks of 3072 of its rows. The weight
 * of a convolution is packed for y and for each of the stride^2 classes of pixels of dx, with the
 * taps that they meet. An operand of k rows and n columns is kept in tiles of 192 columns, the last
 * as large as any; a tile's columns are rounded up to 64, k to 64 / o. Worked out from shapes
 * alone. Exact where matrix products have AVX-512, and where shapes are whole multiples anyway;
 * else the library may round to fewer. */
int64_t dpt_memory_packed(const struct dpt_model *model, int operand_bytes);

/* The workspace of the stream that a slot is computed on: an upper bound, apart from some hundred
 * KiB. `head_meets`: the head's gradient is added to other gradients. For memory_formula.c and its
 * test. */
int64_t dpt_memory_workspace(const struct dpt_memory_spec *spec, bool head_meets);

/* Whether this rank packs its weights, if its host has the memory: by cluster.pack_weights, the
 * strategy and the slots that it computes of a step. `packed_operand` is not read. */
bool dpt_memory_may_pack(const struct dpt_memory_spec *spec);

#endif
