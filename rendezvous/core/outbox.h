/* The outputs of one step: messages, records and log lines, with the memory behind them. */
#ifndef DPT_RENDEZVOUS_CORE_OUTBOX_H
#define DPT_RENDEZVOUS_CORE_OUTBOX_H

#include "rendezvous/core/core.h"

struct chunk;
struct outbox {
    struct chunk *chunks;  /* memory of the last step's outputs, used again by the next step */
    struct chunk *filling; /* the chunk in use; those behind it are empty */
    struct dpt_rdzv_send *sends;
    struct dpt_rdzv_record *records;
    struct dpt_rdzv_log_line *logs;
    size_t n_sends, n_records, n_logs;
    bool no_memory; /* an allocation of this step failed */
};

void dpt_outbox_reset(struct outbox *out);
void dpt_outbox_fini(struct outbox *out);
/* Zeroed memory that is valid until the next reset; NULL sets no_memory. */
void *dpt_outbox_alloc(struct outbox *out, size_t bytes);
char *dpt_outbox_text(struct outbox *out, const char *text);
void dpt_outbox_send(struct outbox *out, uint64_t conn, const Dpt__ServerState *message);
/* Copies the record with all it points to, but for `spec`. Returns the copy, valid until the next
 * record; NULL: no memory. NULL for a text is "". */
struct dpt_rdzv_record *dpt_outbox_record(struct outbox *out, const struct dpt_rdzv_record *record);
void dpt_outbox_log(struct outbox *out, struct dpt_rdzv_log_line line);

#endif
