/* dpt-data encode: text files to shards, on all cores.
 *
 * The caller's thread reads blocks and writes their tokens, both in order; the other threads
 * encode. The written bytes depend on the inputs and the settings alone. They do not depend on the
 * number of threads, the size of blocks, or how often the process died and was started again. */
#ifndef DPT_WORKER_DATA_PREPARE_ENCODE_H
#define DPT_WORKER_DATA_PREPARE_ENCODE_H

#include "worker/data/prepare/cutter.h"

enum { DPT_ENCODE_THREADS_MAX = 128 };

struct dpt_encode_options {
    struct dpt_vocab_options vocab;
    struct dpt_cut_options cut;
    const char *out;      /* folder */
    const char *text_key; /* of .jsonl: the member that holds the text */
    int64_t shard_tokens;
    int threads; /* threads that encode */
    /* Called by the caller's thread at the start and after every block; may be NULL. */
    void (*progress)(void *ctx, int64_t bytes_done, int64_t bytes_all, int64_t tokens);
    void *progress_ctx;
};

struct dpt_encode_result {
    struct {
        int shards;
        int64_t tokens, documents;
    } split[DPT_SPLIT_COUNT];
    int vocab;             /* tokens that the tokenizer has */
    int64_t replaced;      /* sequences of invalid UTF-8 that became U+FFFD */
    int64_t resumed_bytes; /* bytes of the inputs that an earlier process encoded */
    bool was_done;         /* the folder was finished before this call */
};

/* Encodes the inputs into options->out. Continues where an earlier process with the same settings
 * and inputs stopped; after an error the next call continues. DPT_ECONFIG: the tokenizer's files
 * cannot be used. DPT_EREFUSED: the folder was made with other settings, or an input was changed
 * since. DPT_ECORRUPT: names the file and line of .jsonl that has no text. */
DPT_MUST_USE enum dpt_status dpt_encode(const struct dpt_encode_options *options,
                                        const struct dpt_inputs *inputs,
                                        struct dpt_encode_result *ret, struct dpt_err *err);

#endif
