/* Formulas for the memory of a rank (docs/strategies.md), for any strategy, order of addition,
 * precision and world, in whole blocks of 1024 elements. The formulas read config and world, not
 * allocations; tests and dpt-bench compare them with the account (base/account.h). Pure. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_MEMORY_FORMULA_H
#define DPT_WORKER_STRATEGY_MEMORY_MEMORY_FORMULA_H

#include "base/account.h"
#include "checkpoint/layout/shard_piece.h"
#include "worker/model/model.h"
#include "worker/plan/world.h"

/* All borrowed. */
struct dpt_memory_spec {
    const struct dpt_config *config;
    const struct dpt_model *model;
    const struct dpt_grid *grid; /* of the model's units */
    const struct dpt_world *world;
    int rank;
    int threads; /* compute threads of the rank; they set the workspace */
    /* Bytes of an element of packed weights (dpt_ops.operand_bytes); 0: weights are not packed. */
    int packed_operand;
};

/* Bytes of the host's memory by tag, between the steps of a generation. With cluster.device cuda
 * the GPU's memory is not counted: activations, scratch and workspace. If the GPU also keeps the
 * state, the copy of the state in the host's memory and the memory for transfers to peers are
 * counted. If it does not, a buffer of the largest unit is counted too, as slot_gradients.
 *
 * The memory of the strategy, activations, scratch and data is exact. Workspace and comm are within
 * a few hundred KiB: the memory that a thread packs at a time, and the links to peers. Packed forms
 * are as exact as dpt_memory_packed. `trace` is there with trace.dir. `checkpoint`, which a writer
 * needs while it writes, and `other` are 0. */
void dpt_memory_formula(const struct dpt_memory_spec *spec, int64_t ret[DPT_MEMORY_COUNT]);

/* Bytes of the GPU's memory by tag, with cluster.device cuda (all 0 without): weights, state and
 * gradients where the GPU keeps them, else a copy of the weights and a slot's gradients; the base
 * of adapters; activations, scratch and the micro-batch. Exact, except: the workspace of kernels
 * and libraries has no formula and is 0; `other` is 0, and there are the sums of the gradient's
 * norm; `comm` lacks the staging and the tables of reducers that use NCCL, and is a lower bound. */
void dpt_memory_device_formula(const struct dpt_memory_spec *spec, int64_t ret[DPT_MEMORY_COUNT]);

/* The same memory as one sum that a person can check. P: parameters, N: ranks, w: bytes of a
 * parameter in the compute dtype, k: bytes of the f32 master beside it (0 with f32, else 4), U:
 * elements of the largest unit. The sum is
 *   ddp, no_shard          P (w + k + 12)                      (reduce: + 8 U)
 *   ddp's variants         P (w + k + 12)
 *   zero1                  P (w + 4) + P (k + 8) / N           (in waves: as zero2)
 *   zero2, shard_grad_op   P w + P (k + 12) / N + 8 U
 *   zero3, full_shard      P (w + k + 12) / N + 2 U (w + 4)
 *   hybrid_shard           P (w + k + 12) / h + 4 P / N + 2 U (w + 4), h ranks on the node
 *   with a shadow          + 16 P / N
 *   with train.lora        + B w, B parameters of the base; P are the adapters'
 * plus the values of dpt_memory_formula for all other tags. The largest shard counts for every
 * rank. A rank holds no more than this sum, with two exceptions: a tied unit that is not the
 * largest unit (4 bytes an element in waves, w bytes where units are gathered), and the tied unit's
 * gradient (4 bytes an element) where lanes have several slots. */
int64_t dpt_memory_bound(const struct dpt_memory_spec *spec);

/* Bytes of the packed forms of all matrices that products read. An element of a packed form has o =
 * `operand_bytes` bytes. A matrix (in, out) is packed twice: as the right-hand operand (in, out) of
 * y = x w, and as the right-hand operand (out, in) of dx = dy w^T. wte (V, C) is packed the same
 * way, in blocks of 3072 rows. The weight of a convolution is packed for y, and for each of the
 * stride^2 classes of pixels of dx with the taps that the class meets. An operand of k rows and n
 * columns is stored in tiles of 192 columns; the last tile is as large as the others. A tile's
 * columns are rounded up to a multiple of 64, k to a multiple of 64 / o. Only shapes are read. The
 * result is exact where matrix products have AVX-512, and where shapes are whole multiples.
 * Elsewhere the library may round to smaller multiples. */
int64_t dpt_memory_packed(const struct dpt_model *model, int operand_bytes);

/* The workspace of the stream that a slot is computed on: an upper bound but for a few hundred
 * KiB. `head_meets`: the head's gradient is added to other gradients. For memory_formula.c and
 * its test. */
int64_t dpt_memory_workspace(const struct dpt_memory_spec *spec, bool head_meets);

/* Whether this rank packs its weights, provided that its host has the memory.
 * cluster.pack_weights, the strategy and the number of the rank's slots in a step decide.
 * `packed_operand` is not read. */
bool dpt_memory_may_pack(const struct dpt_memory_spec *spec);

#endif
