/* Encoding a block, in one of the pool's threads. */
#include "worker/data/prepare/job.h"

#include <jansson.h>
#include <string.h>

struct encoding {
    const struct dpt_job_options *options;
    struct dpt_encoder *encoder;
    struct dpt_job *job;
};

/* Text of one document, or a part of it. */
struct text {
    enum dpt_split split;
    bool begins; /* the document begins here */
    const void *text;
    size_t bytes;
};

static enum dpt_status add_job_text(const struct encoding *e, struct text text, struct dpt_err *err)
{
    const int end_of_text = dpt_vocab_end_of_text(e->options->vocab);
    struct dpt_job *job = e->job;
    struct dpt_tokens *tokens = &job->tokens[text.split];
    if (text.bytes == 0)
        return DPT_OK;
    if (text.begins && end_of_text >= 0)
        DPT_TRY(dpt_tokens_add(tokens, (uint32_t)end_of_text, err));
    job->documents[text.split] += text.begins;
    return dpt_encoder_encode(e->encoder, text.text, text.bytes, tokens, err);
}

static enum dpt_status add_line(const struct encoding *e, int64_t unit, const uint8_t *line,
                                size_t bytes, struct dpt_err *err)
{
    json_error_t at;
    json_t *json = json_loadb((const char *)line, bytes, JSON_ALLOW_NUL, &at);
    const json_t *text = json_object_get(json, e->options->text_key);
    enum dpt_status status;
    if (!json)
        status = dpt_fail(err, DPT_ECORRUPT, "no JSON: %s", at.text);
    else if (!json_is_string(text))
        status = dpt_fail(err, DPT_ECORRUPT, "%s; --text-key names the member that is the text",
                          !json_is_object(json) ? "no JSON object"
                          : text                ? "its text is no string"
                                                : "no member of that name");
    else
        status = add_job_text(
            e,
            (struct text){dpt_cutter_split(e->options->cutter, e->job->block.input, unit), true,
                          json_string_value(text), json_string_length(text)},
            err);
    json_decref(json);
    return status;
}

static enum dpt_status add_lines(const struct encoding *e, struct dpt_err *err)
{
    const struct dpt_block *block = &e->job->block;
    int64_t unit = block->unit, number = block->line;
    for (size_t at = 0; at < block->bytes; number++) {
        const uint8_t *line = block->text + at, *end = memchr(line, '\n', block->bytes - at);
        const size_t n = end ? (size_t)(end - line) : block->bytes - at;
        at += n + 1;
        if (dpt_line_is_blank(line, n))
            continue;
        const enum dpt_status status = add_line(e, unit++, line, n, err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, "'%s', line %lld", block->input->file.path,
                            (long long)number + 1);
    }
    return DPT_OK;
}

void dpt_job_encode(const struct dpt_job_options *options, struct dpt_encoder **encoder,
                    struct dpt_job *job)
{
    const struct dpt_block *block = &job->block;
    for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
        job->tokens[s].n = 0;
        job->documents[s] = 0;
    }
    job->replaced = 0;
    job->status = *encoder ? DPT_OK : dpt_encoder_create(options->vocab, encoder, &job->err);
    if (job->status != DPT_OK)
        return;
    const struct encoding e = {.options = options, .encoder = *encoder, .job = job};
    const struct text text = {block->split, block->begins, block->text, block->bytes};
    const int64_t before = dpt_encoder_replaced(*encoder);
    job->status =
        block->input->jsonl ? add_lines(&e, &job->err) : add_job_text(&e, text, &job->err);
    job->replaced = dpt_encoder_replaced(*encoder) - before;
}
