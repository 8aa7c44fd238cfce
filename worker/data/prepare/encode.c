/* The caller's thread of dpt-data encode: reads blocks, gives them to the threads, writes tokens.
 */
#include "worker/data/prepare/encode.h"

#include "base/parse.h"
#include "worker/data/prepare/job_pool.h"
#include "worker/data/prepare/shards.h"

#include <errno.h>
#include <jansson.h>
#include <sys/stat.h>

/* Text between two saves of the state, in blocks. A process that dies loses at most this much work,
 * and the blocks that its threads hold. */
enum { BLOCKS_PER_SAVE = 32 };

struct encode {
    const struct dpt_encode_options *options;
    const struct dpt_inputs *inputs;
    struct dpt_vocab *vocab;
    struct dpt_cutter cutter;
    struct dpt_shards shards;
    struct dpt_job_pool *pool;
    int64_t file_bytes; /* of the files before progress.at.file */
    int64_t first_file; /* the index of that file */
    size_t unsaved;     /* bytes of text written since the last save */
};

/* All settings that decide the bytes of the shards. */
static json_t *make_settings(const struct dpt_encode_options *options,
                             const struct dpt_vocab *vocab, const struct dpt_inputs *inputs)
{
    char hash[DPT_HASH_HEX_BYTES], vocab_hash[DPT_HASH_HEX_BYTES];
    dpt_vocab_digest(vocab, vocab_hash);
    dpt_inputs_hash(inputs, false, hash);
    const bool lots = options->cut.val_fraction > 0;
    char fraction[DPT_DOUBLE_TEXT_BYTES];
    dpt_format_double(options->cut.val_fraction, fraction);
    const char *unit = options->cut.unit == DPT_UNIT_DOCUMENT ? "document" : "line";
    json_t *settings =
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:s, s:s, s:s, s:I, s:I}", "tokenizer",
                  dpt_tokenizer_name(options->vocab.kind), "vocab", vocab_hash, "input_files",
                  inputs->n, "input_bytes", (json_int_t)inputs->bytes, "input_paths_and_sizes",
                  hash, "text_key", options->text_key, "val_fraction", fraction, "split",
                  lots ? unit : "as named", "seed", lots ? (json_int_t)options->cut.seed : 0,
                  "shard_tokens", (json_int_t)options->shard_tokens);
    /* The other tokenizers have fixed numbers of tokens. */
    if (settings && options->vocab.kind == DPT_TOKENIZER_HF &&
        json_object_set_new(settings, "vocab_tokens", json_integer(dpt_vocab_size(vocab))) != 0) {
        json_decref(settings);
        return NULL;
    }
    return settings;
}

static int64_t bytes_done(struct encode *e)
{
    for (; e->first_file < e->shards.progress.at.file; e->first_file++)
        e->file_bytes += e->inputs->files[e->first_file].file.bytes;
    return e->file_bytes + e->shards.progress.at.offset;
}

static void report_progress(struct encode *e)
{
    int64_t tokens = 0;
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        tokens += e->shards.list[s].tokens;
    if (e->options->progress)
        e->options->progress(e->options->progress_ctx, bytes_done(e), e->inputs->bytes, tokens);
}

/* Writes the oldest block. */
static enum dpt_status write_oldest(struct encode *e, const struct dpt_job *job,
                                    struct dpt_err *err)
{
    if (job->status != DPT_OK) {
        *err = job->err;
        return job->status;
    }
    for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
        DPT_TRY(dpt_shards_append(&e->shards, (enum dpt_split)s, job->tokens[s].ids,
                                  job->tokens[s].n, err));
        e->shards.list[s].documents += job->documents[s];
    }
    e->shards.progress.at = job->block.after;
    e->shards.progress.replaced += job->replaced;
    e->unsaved += job->block.bytes;
    if (e->unsaved >= BLOCKS_PER_SAVE * e->options->cut.block_bytes ||
        dpt_shards_want_save(&e->shards)) {
        DPT_TRY(dpt_shards_save(&e->shards, err));
        e->unsaved = 0;
    }
    report_progress(e);
    return DPT_OK;
}

static enum dpt_status encode_blocks(struct encode *e, struct dpt_err *err)
{
    report_progress(e);
    for (;;) {
        struct dpt_job *job = dpt_cutter_at_end(&e->cutter) ? NULL : dpt_job_pool_empty(e->pool);
        if (job) {
            struct dpt_err why;
            const enum dpt_status status = dpt_cutter_next(&e->cutter, &job->block, &why);
            if (status == DPT_ECORRUPT)
                return dpt_fail(err, status, "%s, or name a new --out", why.text);
            if (status != DPT_OK)
                return dpt_pass(err, &why);
            dpt_job_pool_submit(e->pool);
            continue;
        }
        job = dpt_job_pool_oldest(e->pool);
        if (!job)
            return dpt_shards_finish(&e->shards, err);
        DPT_TRY(write_oldest(e, job, err));
        dpt_job_pool_release(e->pool);
    }
}

/* The record of a finished folder does not have the times of the inputs, so an input that is newer
 * than the record counts as changed. */
static enum dpt_status check_not_newer(const struct encode *e, struct dpt_err *err)
{
    struct stat st;
    if (fstatat(e->shards.dir_fd, DPT_RECORD_NAME, &st, 0) != 0)
        return dpt_fail_errno(err, errno, "look at '%s/" DPT_RECORD_NAME "'", e->shards.dir);
    for (int i = 0; i < e->inputs->n; i++) {
        const struct dpt_data_file *file = &e->inputs->files[i].file;
        if (file->changed_s > st.st_mtim.tv_sec ||
            (file->changed_s == st.st_mtim.tv_sec && file->changed_ns > st.st_mtim.tv_nsec))
            return dpt_fail(err, DPT_EREFUSED,
                            "'%s' was changed since '%s/" DPT_RECORD_NAME
                            "' was written; name another --out, or remove that folder",
                            file->path, e->shards.dir);
    }
    return DPT_OK;
}

/* Any fault of the tokenizer's files is a wrong option of the user. */
static enum dpt_status refuse_vocab(struct dpt_err *err)
{
    if (err->status != DPT_ENOMEM)
        err->status = DPT_ECONFIG;
    return err->status;
}

static enum dpt_status open_folder(struct encode *e, bool *ret_done, int64_t *ret_resumed,
                                   struct dpt_err *err)
{
    const struct dpt_encode_options *o = e->options;
    struct dpt_cut_options cut = o->cut;
    if (dpt_vocab_open(&o->vocab, &e->vocab, err) != DPT_OK)
        return refuse_vocab(err);
    cut.cuts = dpt_vocab_cuts(e->vocab);
    DPT_TRY(
        dpt_shards_open(&e->shards, o->out, o->shard_tokens, dpt_vocab_token_bytes(e->vocab), err));
    e->shards.settings = make_settings(o, e->vocab, e->inputs);
    if (!e->shards.settings)
        return dpt_fail_nomem(err, "encode");
    dpt_inputs_hash(e->inputs, true, e->shards.progress.inputs);
    DPT_TRY(dpt_shards_resume(&e->shards, ret_done, err));
    if (*ret_done)
        return check_not_newer(e, err);
    DPT_TRY(dpt_cutter_init(&e->cutter, &cut, e->inputs, err));
    if (e->shards.progress.at.file > e->inputs->n)
        return dpt_fail(err, DPT_ECORRUPT, "'%s/" DPT_STATE_NAME "' names a file beyond the last",
                        o->out);
    dpt_cutter_seek(&e->cutter, e->shards.progress.at);
    *ret_resumed = bytes_done(e);
    const struct dpt_job_options jobs = {
        .vocab = e->vocab, .cutter = &e->cutter, .text_key = o->text_key};
    return dpt_job_pool_create(&jobs, o->threads, &e->pool, err);
}

enum dpt_status dpt_encode(const struct dpt_encode_options *options,
                           const struct dpt_inputs *inputs, struct dpt_encode_result *ret,
                           struct dpt_err *err)
{
    struct encode e = {.options = options,
                       .inputs = inputs,
                       .shards = {.dir_fd = -1, .list = {{.fd = -1}, {.fd = -1}}}};
    bool done = false;
    int64_t resumed = 0;
    enum dpt_status status = open_folder(&e, &done, &resumed, err);
    if (status == DPT_OK && !done)
        status = encode_blocks(&e, err);
    if (status == DPT_OK) {
        *ret = (struct dpt_encode_result){.replaced = e.shards.progress.replaced,
                                          .resumed_bytes = resumed,
                                          .was_done = done,
                                          .vocab = dpt_vocab_size(e.vocab)};
        for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
            ret->split[s].shards = e.shards.list[s].full;
            ret->split[s].tokens = e.shards.list[s].tokens;
            ret->split[s].documents = e.shards.list[s].documents;
        }
    }
    dpt_job_pool_destroy(&e.pool);
    dpt_cutter_fini(&e.cutter);
    dpt_shards_close(&e.shards);
    dpt_vocab_close(&e.vocab);
    json_decref(e.shards.settings);
    return status;
}
