/* The files that dpt-data encode writes beside the shards, as JSON: the state while it works (its
 * progress and settings), and the record of the shards at its end. */
#ifndef DPT_WORKER_DATA_PREPARE_ENCODE_STATE_H
#define DPT_WORKER_DATA_PREPARE_ENCODE_STATE_H

#include "worker/data/prepare/shards.h"

enum { DPT_ENCODE_STATE_VERSION = 1, DPT_STATE_BYTES_MAX = 64 << 20 };

/* Writes the settings, the progress and the lists. */
DPT_MUST_USE enum dpt_status dpt_encode_state_write(const struct dpt_shards *shards,
                                                    struct dpt_err *err);

/* Reads the state, if there is one, into the lists and the progress. *ret_found: there is one.
 * DPT_EREFUSED names the first setting that differs, or says that the inputs differ. */
DPT_MUST_USE enum dpt_status dpt_encode_state_read(struct dpt_shards *shards, bool *ret_found,
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_encode_state_remove(const struct dpt_shards *shards,
                                                     struct dpt_err *err);

/* Writes dpt-data.json, and SHA256SUMS in the form of `sha256sum -c`. */
DPT_MUST_USE enum dpt_status dpt_encode_state_write_record(const struct dpt_shards *shards,
                                                           struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_encode_state_write_sums(const struct dpt_shards *shards,
                                                         struct dpt_err *err);

/* Reads the record, if there is one, into the lists. *ret_done: its settings are these.
 * DPT_EREFUSED names a setting that differs. */
DPT_MUST_USE enum dpt_status dpt_encode_state_check_record(struct dpt_shards *shards,
                                                           bool *ret_done, struct dpt_err *err);

#endif
