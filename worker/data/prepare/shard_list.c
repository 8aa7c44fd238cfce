/* Lists of shards. */
#include "worker/data/prepare/shard_list.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void dpt_shard_list_name(const struct dpt_shard_list *list, int index,
                         char ret_name[DPT_SHARD_NAME_BYTES])
{
    (void)snprintf(ret_name, DPT_SHARD_NAME_BYTES, "%s_%06d.bin", list->split, index);
}

enum dpt_status dpt_shard_list_reserve(struct dpt_shard_list *list, int n, struct dpt_err *err)
{
    if (n > DPT_PREPARED_SHARDS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d shards: set a larger --shard-tokens",
                        DPT_PREPARED_SHARDS_MAX);
    return dpt_array_reserve(&list->shards, &list->room, (size_t)n, sizeof *list->shards)
               ? DPT_OK
               : dpt_fail_nomem(err, "list of shards");
}

void dpt_shard_list_fini(struct dpt_shard_list *list)
{
    if (list->fd >= 0)
        (void)close(list->fd); /* saved bytes are durable; a resume writes the others again */
    free(list->shards);
    *list = (struct dpt_shard_list){.fd = -1};
}
