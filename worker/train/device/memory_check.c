/* Checks, before the allocations, that this machine has enough memory for its ranks. Otherwise the
 * kernel would kill a process in the middle of a step without a message. */
#include "base/memory.h"
#include "base/number.h"
#include "worker/strategy/memory/memory_formula.h"
#include "worker/train/device/rank_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { TOLERANCE = 16 }; /* the formulas are accurate to 1/16 */

/* Bytes of a rank in a world of `size` ranks, without the tags that have no exact formula. */
static int64_t bytes_in_world(const struct dpt_rank *r, int size, int64_t ret[DPT_MEMORY_COUNT])
{
    static const enum dpt_memory_tag inexact[] = {DPT_MEMORY_WORKSPACE, DPT_MEMORY_COMM,
                                                  DPT_MEMORY_PACKED};
    int *numbers = calloc(2 * (size_t)size, sizeof *numbers);
    int64_t sum = 0;
    if (!numbers)
        return 0;
    for (int i = 0; i < size; i++) {
        numbers[i] = i;
        numbers[size + i] = i / r->options->start->ranks;
    }
    const struct dpt_world world = {.lanes = dpt_config_lanes_of(r->config, size),
                                    .size = size,
                                    .rank_of_position = numbers,
                                    .host_of_position = numbers + size,
                                    .node_of_position = numbers + size};
    const struct dpt_memory_spec spec = {.config = r->config,
                                         .model = r->model,
                                         .grid = &r->grid,
                                         .world = &world,
                                         .rank = size - 1, /* the last rank has the fewest lanes */
                                         .threads = 1};
    dpt_memory_formula(&spec, ret);
    free(numbers);
    for (size_t i = 0; i < sizeof inexact / sizeof *inexact; i++)
        ret[inexact[i]] = 0;
    for (int tag = 0; tag < DPT_MEMORY_COUNT; tag++)
        sum += ret[tag];
    return sum;
}

/* The bytes of a rank in the world in which a rank of this run holds the least. That is the largest
 * world, or the world of one rank, which sends nothing. */
static int64_t least_bytes(const struct dpt_rank *r, int64_t ret[DPT_MEMORY_COUNT])
{
    const int most = dpt_config_world_max(r->config),
              wished = r->config->cluster.nnodes_max * r->options->start->ranks;
    int64_t alone[DPT_MEMORY_COUNT];
    const int64_t in_largest = bytes_in_world(r, wished < most ? wished : most, ret),
                  in_smallest = bytes_in_world(r, 1, alone);
    if (in_largest <= in_smallest)
        return in_largest;
    memcpy(ret, alone, sizeof alone);
    return in_smallest;
}

/* Whether `most` bytes (0: unknown) are too few for `ranks` ranks that need `wanted` bytes each. */
static bool is_too_little(int64_t wanted, int ranks, int64_t most)
{
    return most > 0 && (wanted - wanted / TOLERANCE) * ranks > most;
}

/* Lists the settings that make a micro-batch smaller. */
enum { SMALLER_BYTES = 160 };
static void list_smaller_settings(const struct dpt_config *config, char ret[SMALLER_BYTES])
{
    if (dpt_config_reads_images(config))
        (void)snprintf(ret, SMALLER_BYTES,
                       "lower train.micro_batch (%d) or data.image_size (%d), or model.width (%d)",
                       config->train.micro_batch, config->data.image_size, config->model.width);
    else
        (void)snprintf(ret, SMALLER_BYTES,
                       "lower train.micro_batch (%d) or train.seq_len (%d), set "
                       "train.activation_checkpointing: full",
                       config->train.micro_batch, config->train.seq_len);
}

/* Compares the need of one rank with the memory that is available now, and the need of all ranks of
 * the node with the memory of the whole machine, because the other ranks may have allocated
 * already. */
enum dpt_status rank_check_memory(const struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_config *config = r->config;
    int64_t kinds[DPT_MEMORY_COUNT];
    if (config->train.eval_only)
        return DPT_OK;
    const int64_t wanted = least_bytes(r, kinds);
    const int64_t micro = kinds[DPT_MEMORY_ACTIVATIONS] + kinds[DPT_MEMORY_SCRATCH];
    const int64_t left = dpt_memory_at_most(""), all = dpt_memory_of_machine("");
    const int ranks = r->options->start->ranks;
    char there[96], smaller[SMALLER_BYTES];
    if (is_too_little(wanted, 1, left))
        (void)snprintf(there, sizeof there, "%.0f MiB are available here", dpt_mib(left));
    else if (is_too_little(wanted, ranks, all))
        (void)snprintf(there, sizeof there, "%d ranks share the %.0f MiB of this machine", ranks,
                       dpt_mib(all));
    else
        return DPT_OK;
    list_smaller_settings(config, smaller);
    return dpt_fail(
        err, DPT_ENOMEM,
        "too little memory: a rank needs at least %.0f MiB (%.0f for the activations of a "
        "micro-batch, %.0f for weights, gradients and the optimizer), and %s; %s, share the state "
        "among more ranks with strategy.name: fsdp, or take a smaller model",
        dpt_mib(wanted), dpt_mib(micro), dpt_mib(wanted - micro), there, smaller);
}

void rank_explain_memory(enum dpt_status status, struct dpt_err *err)
{
    if (status != DPT_ENOMEM || strstr(err->text, "too little memory") != NULL)
        return;
    struct dpt_err why = *err;
    struct rlimit limit;
    char address_space[64] = "";
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        (void)snprintf(address_space, sizeof address_space, ", %.0f in a process (ulimit -v)",
                       (double)limit.rlim_cur / 0x1p20);
    (void)dpt_fail(err, status,
                   "too little memory: %.200s; %.0f MiB are available here%s; lower "
                   "train.micro_batch, train.seq_len or data.image_size, set "
                   "train.activation_checkpointing: full (texts), share the state with "
                   "strategy.name: fsdp, or take a smaller model",
                   why.text, dpt_mib(dpt_memory_available("")), address_space);
}
