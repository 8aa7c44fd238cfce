/* Buckets of messages and bytes, by descriptor. */
#include "rendezvous/server/meter.h"

static int32_t refilled_credit(int32_t now, int64_t elapsed_ms, int64_t per_ms, int32_t most)
{
    const int64_t full_ms = most / per_ms + 1;
    if (elapsed_ms >= full_ms)
        return most;
    const int64_t sum = now + elapsed_ms * per_ms;
    return sum < most ? (int32_t)sum : most;
}

bool dpt_meter_take(struct dpt_meter *meter, int fd, uint64_t conn, size_t bytes, int64_t now_ms)
{
    if (fd < 0 || fd >= DPT_PEERS_FDS_MAX)
        return true;
    struct dpt_meter_fd *entry = &meter->fds[fd];
    if (entry->conn != conn)
        *entry = (struct dpt_meter_fd){.conn = conn,
                                       .filled_ms = now_ms,
                                       .messages = DPT_METER_MESSAGES_MAX,
                                       .bytes = DPT_METER_BYTES_MAX};
    const int64_t elapsed_ms = now_ms - entry->filled_ms;
    entry->messages = refilled_credit(entry->messages, elapsed_ms, DPT_METER_MESSAGES_PER_MS,
                                      DPT_METER_MESSAGES_MAX);
    entry->bytes =
        refilled_credit(entry->bytes, elapsed_ms, DPT_METER_BYTES_PER_MS, DPT_METER_BYTES_MAX);
    entry->filled_ms = now_ms;
    if (entry->messages < 1 || bytes > (size_t)entry->bytes)
        return false;
    entry->messages--;
    entry->bytes -= (int32_t)bytes;
    return true;
}
