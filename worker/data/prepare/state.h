/* What dpt-data encode writes beside the shards, as JSON: the state while it works (how far it got
 * with which settings), and the record of what the shards are, once it is done. */
#ifndef DPT_WORKER_DATA_PREPARE_STATE_H
#define DPT_WORKER_DATA_PREPARE_STATE_H

#include "worker/data/prepare/shards.h"

enum { DPT_STATE_VERSION = 1, DPT_STATE_BYTES_MAX = 64 << 20 };

/* `settings` is a json_t that holds all that the shards' bytes depend on (borrowed). */
DPT_MUST_USE enum dpt_status dpt_state_write(const struct dpt_shards *shards, const void *settings,
                                             const struct dpt_shards_progress *progress,
                                             struct dpt_err *err);

/* Reads the state into the lists of `shards` and *progress. *ret_found: there is one. DPT_EREFUSED
 * names the first setting that differs, or says that progress->inputs does. */
DPT_MUST_USE enum dpt_status dpt_state_read(struct dpt_shards *shards, const void *settings,
                                            struct dpt_shards_progress *progress, bool *ret_found,
                                            struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_state_remove(const struct dpt_shards *shards, struct dpt_err *err);

/* dpt-data.json, and SHA256SUMS as `sha256sum -c` reads it. */
DPT_MUST_USE enum dpt_status dpt_state_write_record(const struct dpt_shards *shards,
                                                    const void *settings,
                                                    const struct dpt_shards_progress *progress,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_state_write_sums(const struct dpt_shards *shards,
                                                  struct dpt_err *err);

/* Reads the record, if there is one, into the lists. *ret_done: it has these settings; with others
 * DPT_EREFUSED. */
DPT_MUST_USE enum dpt_status dpt_state_check_record(struct dpt_shards *shards, const void *settings,
                                                    bool *ret_done, struct dpt_err *err);

/* Room for n shards; DPT_EOVERFLOW beyond the limit. */
DPT_MUST_USE enum dpt_status dpt_shards_reserve(struct dpt_shard_list *list, int n,
                                                struct dpt_err *err);

#endif
