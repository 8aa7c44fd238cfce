/* Texts with labels, as tokens in memory: the data of data.kind: classification. */
#ifndef DPT_WORKER_DATA_LABELLED_H
#define DPT_WORKER_DATA_LABELLED_H

#include "worker/data/data_file.h"
#include "worker/data/tokenizer.h"

struct dpt_labelled {
    int64_t n;       /* texts */
    int32_t *labels; /* (n) in [0, model.labels) */
    int64_t *ends;   /* (n) index behind the last token of each text */
    int seq_len;     /* tokens of the longest text, or more */
    int width;       /* bytes of a token: 2 or 4 */
    void *tokens;    /* (ends[n - 1]) */
    size_t labels_room, ends_room, tokens_room;
};

/* A table. Its first `samples` rows are read (0: all), as config key `key` says. */
struct dpt_labelled_source {
    const struct dpt_data_file *file; /* identified */
    const char *key;
    int64_t samples;
};

/* Reads the texts and keeps the first train.seq_len tokens of each, as the config says. Errors
 * begin with the file and the line. DPT_ECORRUPT and DPT_ECONFIG: a fault of a row
 * (worker/data/label_table.h), or an empty text. DPT_ECONFIG also: there is no row, or fewer rows
 * than are to be read. Unless tokens are bytes, a warning tells of texts that are not UTF-8. */
DPT_MUST_USE enum dpt_status dpt_labelled_create(const struct dpt_config *config,
                                                 const struct dpt_labelled_source *source,
                                                 const struct dpt_vocab *vocab,
                                                 struct dpt_labelled **ret, struct dpt_err *err);
void dpt_labelled_destroy(struct dpt_labelled **labelled);

/* Tokens of all texts. */
int64_t dpt_labelled_tokens(const struct dpt_labelled *labelled);

/* Text `i`: writes its tokens, 1 … seq_len of them, to `ret_tokens`, which has room for seq_len. */
void dpt_labelled_get(const struct dpt_labelled *labelled, int64_t i, int32_t *ret_tokens,
                      int32_t *ret_length, int32_t *ret_label);

/* The hash of every text's label, length and tokens, in order. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_labelled_hash(const struct dpt_labelled *labelled,
                                               struct dpt_hash128 *ret, struct dpt_err *err);

#endif
