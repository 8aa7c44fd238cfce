/* dpt-ckpt generate (generate.h). */
#include "worker/ckpt/generate.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/cores.h"
#include "base/option.h"
#include "base/parse.h"
#include "base/stdout.h"
#include "kernels/device.h"
#include "worker/ckpt/weights.h"
#include "worker/data/prepare/record.h"
#include "worker/data/tokenizer.h"
#include "worker/generate/generator.h"
#include "worker/generate/utf8_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPT_BYTES_MAX = 1 << 20,
    THREADS_MAX = 128,
    VOCAB_MAX = 1 << 24,
    MAX_TOKENS_MAX = 1 << 30,
    MAX_TOKENS_DEFAULT = 200,
    TOP_K_DEFAULT = 40,
    SEED_DEFAULT = 42
};

struct options {
    const char *path, *prompt, *tokenizer, *vocab_bpe, *encoder_json, *tokenizer_json, *logprobs;
    const char *base;                   /* NULL: model.init_from of the run */
    int64_t max_tokens, top_k, threads; /* threads 0: one for each core */
    struct dpt_token_choice_settings sampling;
    bool any_vocab, help;
};

/* ---- the command line ---- */

static enum dpt_status set_temperature(void *ctx, const char *value, struct dpt_err *err)
{
    double *temperature = ctx;
    DPT_TRY(dpt_parse_double(value, temperature, err));
    return *temperature >= 0 && *temperature <= 100
               ? DPT_OK
               : dpt_fail(err, DPT_EINVAL, "expected a number from 0 to 100, got '%.40s'", value);
}

static enum dpt_status set_seed(void *ctx, const char *value, struct dpt_err *err)
{
    return dpt_parse_u64(value, UINT64_MAX, ctx, err);
}

enum { OPTION_COUNT = 14 };

/* Describes the options, whose values go to `o`. */
static void fill_options(struct options *o, struct dpt_option ret[OPTION_COUNT])
{
    const struct dpt_option options[OPTION_COUNT] = {
        {"--prompt", "TEXT", "the start of the text", .text = &o->prompt},
        {"--max-tokens", "N",
         "the most new tokens (200); the end of text (eos_token_id) ends it too",
         .number = &o->max_tokens, .max = MAX_TOKENS_MAX},
        {"--temperature", "T",
         "below 1 likely tokens become likelier (0.8); 0: the likeliest token each time",
         .set = set_temperature, .ctx = &o->sampling.temperature},
        {"--top-k", "K", "draws from the K likeliest tokens (40); 0: from all tokens",
         .number = &o->top_k, .max = VOCAB_MAX},
        {"--seed", "N", "the same seed gives the same text (42)", .set = set_seed,
         .ctx = &o->sampling.seed},
        {"--threads", "N", "compute threads (one a processor); changes no token",
         .number = &o->threads, .min = 1, .max = THREADS_MAX},
        {"--tokenizer", "bytes|gpt2|hf",
         "a tokenizer other than that of the run's config or shards", .text = &o->tokenizer},
        {"--vocab-bpe", "FILE", "merges of the gpt2 tokenizer (the config's)",
         .text = &o->vocab_bpe},
        {"--encoder-json", "FILE", "its vocabulary (the config's)", .text = &o->encoder_json},
        {"--any-vocab", .help = "accepts files other than OpenAI's (the config's)",
         .flag = &o->any_vocab},
        {"--tokenizer-json", "FILE", "of the hf tokenizer (the config's)",
         .text = &o->tokenizer_json},
        {"--base", "FOLDER", "the base of adapters (train.lora; the run's model.init_from)",
         .text = &o->base},
        {"--logprobs", "FILE",
         "writes the log-probability of each token, and of the K likeliest, as JSON lines",
         .text = &o->logprobs},
        {"--help", .help = "print this", .flag = &o->help},
    };
    memcpy(ret, options, sizeof options);
}

void dpt_ckpt_generate_help(FILE *out)
{
    struct options o;
    struct dpt_option options[OPTION_COUNT];
    fill_options(&o, options);
    (void)fputs(
        "usage: dpt-ckpt generate DIR[/step-N] --prompt TEXT [options]\n"
        "\n"
        "Continues a text with the model of a checkpoint (default: the newest complete one in "
        "DIR), in fp32.\n"
        "DIR may be a Hugging Face folder, with its tokenizer.json.\n"
        "\n",
        out);
    for (int i = 0; i < OPTION_COUNT; i++) {
        char left[64];
        const char *value = options[i].value;
        (void)snprintf(left, sizeof left, "%s%s%s", options[i].name, value ? " " : "",
                       value ? value : "");
        (void)fprintf(out, "  %-26s %s\n", left, options[i].help);
    }
}

static enum dpt_status check_options(const struct options *o, struct dpt_err *err)
{
    if (o->help)
        return DPT_OK;
    if (!o->path)
        return dpt_fail(err, DPT_EINVAL, "which checkpoint? dpt-ckpt generate DIR --prompt TEXT");
    if (!o->prompt || !o->prompt[0])
        return dpt_fail(err, DPT_EINVAL,
                        "--prompt %s: the model continues a text, of one character at least",
                        o->prompt ? "is empty" : "is missing");
    if (strlen(o->prompt) > PROMPT_BYTES_MAX)
        return dpt_fail(err, DPT_EINVAL, "--prompt has %zu bytes, at most %d are read",
                        strlen(o->prompt), PROMPT_BYTES_MAX);
    enum dpt_tokenizer kind;
    if (o->tokenizer && !dpt_tokenizer_named(o->tokenizer, &kind))
        return dpt_fail(err, DPT_EINVAL, "--tokenizer '%.40s' is none of bytes, gpt2, hf",
                        o->tokenizer);
    return DPT_OK;
}

static enum dpt_status parse_command_line(int argc, char *const *argv, struct options *o,
                                          struct dpt_err *err)
{
    struct dpt_option options[OPTION_COUNT];
    fill_options(o, options);
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            DPT_TRY(dpt_option_read(options, OPTION_COUNT, argc, argv, &i, err));
        else if (o->path)
            return dpt_fail(err, DPT_EINVAL, "unexpected argument '%.80s'", argv[i]);
        else
            o->path = argv[i];
    o->sampling.top_k = (int)o->top_k;
    return check_options(o, err);
}

/* ---- the parts ---- */

struct parts {
    struct options options;
    struct dpt_ckpt_weights *weights;
    struct dpt_config config; /* config of the model and its tokenizer */
    struct dpt_vocab *vocab;
    struct dpt_hf_ends ends; /* n 0: the vocabulary's end-of-text token */
    struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    void *flat;
    size_t flat_bytes;
    struct dpt_tokens prompt;
    struct dpt_generator *generator;
    FILE *logprobs; /* the file of --logprobs; NULL: without it */
    struct dpt_token_candidate
        *candidates; /* [tokens of the vocabulary] with --logprobs; else NULL */
};

static void close_parts(struct parts *p)
{
    if (p->logprobs)
        (void)fclose(p->logprobs);
    free(p->candidates);
    dpt_generator_destroy(&p->generator);
    if (p->flat)
        dpt_device_free(p->device, p->flat, p->flat_bytes);
    dpt_stream_destroy(&p->stream);
    dpt_device_destroy(&p->device);
    dpt_model_destroy(&p->model);
    dpt_vocab_close(&p->vocab);
    dpt_ckpt_weights_close(&p->weights);
    dpt_tokens_fini(&p->prompt);
}

/* Finds the tokenizer of token shards if the config names none: the tokenizer in the record beside
 * the shards, else the only tokenizer with a vocabulary of this size. */
static enum dpt_status tokenizer_of_shards(const struct parts *p, enum dpt_tokenizer *ret,
                                           struct dpt_err *err)
{
    const struct dpt_config *c = &p->config;
    struct dpt_record record;
    if (dpt_ckpt_weights_step(p->weights) < 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has no tokenizer.json, nor merges.txt and vocab.json: give "
                        "--tokenizer-json FILE, --vocab-bpe FILE and --encoder-json FILE, or "
                        "--tokenizer bytes",
                        p->options.path);
    dpt_record_look(c->data.train, &record);
    if (dpt_tokenizer_named(record.tokenizer, ret))
        return DPT_OK;
    const bool gpt2 = c->model.vocab == DPT_VOCAB_GPT2 && strcmp(c->model.name, "gpt2") == 0;
    if (c->model.vocab == DPT_VOCAB_BYTES || gpt2) {
        *ret = gpt2 ? DPT_TOKENIZER_GPT2 : DPT_TOKENIZER_BYTES;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_ECONFIG,
                    "the run's config and data.train ('%.200s') do not name the tokenizer of the "
                    "shards: give --tokenizer-json FILE, --vocab-bpe FILE and --encoder-json FILE, "
                    "or --tokenizer bytes",
                    c->data.train);
}

static enum dpt_status tokenizer_of(const struct parts *p, enum dpt_tokenizer *ret,
                                    struct dpt_err *err)
{
    const struct options *o = &p->options;
    if (o->tokenizer && dpt_tokenizer_named(o->tokenizer, ret))
        return DPT_OK;
    *ret = p->config.data.tokenizer;
    if (o->tokenizer_json)
        *ret = DPT_TOKENIZER_HF;
    else if (o->vocab_bpe || o->encoder_json)
        *ret = DPT_TOKENIZER_GPT2;
    else if (p->config.data.kind == DPT_DATA_TOKENS && *ret == DPT_TOKENIZER_BYTES)
        return tokenizer_of_shards(p, ret, err); /* with token shards the key has its default */
    return DPT_OK;
}

static enum dpt_status open_vocab(struct parts *p, struct dpt_err *err)
{
    const struct options *o = &p->options;
    enum dpt_tokenizer kind;
    DPT_TRY(tokenizer_of(p, &kind, err));
    const struct dpt_vocab_options options = {
        .kind = kind,
        .vocab_bpe = o->vocab_bpe ? o->vocab_bpe : p->config.data.vocab_bpe,
        .encoder_json = o->encoder_json ? o->encoder_json : p->config.data.encoder_json,
        .any_vocab = o->any_vocab || p->config.data.any_vocab,
        .tokenizer_json = o->tokenizer_json ? o->tokenizer_json : p->config.data.tokenizer_json,
        .by_options = o->vocab_bpe || o->encoder_json || o->tokenizer_json};
    if (options.kind == DPT_TOKENIZER_GPT2 && (!options.vocab_bpe[0] || !options.encoder_json[0]))
        return dpt_fail(
            err, DPT_ECONFIG,
            "this model has GPT-2's tokens: name the tokenizer's files with --vocab-bpe FILE "
            "and --encoder-json FILE");
    if (options.kind == DPT_TOKENIZER_HF && !options.tokenizer_json[0])
        return dpt_fail(err, DPT_ECONFIG,
                        "this model has the tokens of a tokenizer.json: name the file with "
                        "--tokenizer-json FILE");
    DPT_TRY(dpt_vocab_open(&options, &p->vocab, err));
    if (dpt_vocab_size(p->vocab) > p->config.model.vocab)
        return dpt_fail(err, DPT_ECONFIG,
                        "the tokenizer has %d tokens, the model %d: it was "
                        "trained with another one (--tokenizer)",
                        dpt_vocab_size(p->vocab), p->config.model.vocab);
    return DPT_OK;
}

static enum dpt_status encode_prompt(struct parts *p, struct dpt_err *err)
{
    struct dpt_encoder *encoder = NULL;
    DPT_TRY(dpt_encoder_create(p->vocab, &encoder, err));
    dpt_encoder_take_special(encoder); /* special tokens in the text count, as in a chat template */
    enum dpt_status status =
        dpt_encoder_encode(encoder, p->options.prompt, strlen(p->options.prompt), &p->prompt, err);
    dpt_encoder_destroy(&encoder);
    return status;
}

/* Shortens the context, which determines the length of the cache. The context need not be longer
 * than the text. */
static void shorten_context(struct parts *p)
{
    const int64_t text = (int64_t)p->prompt.n + p->options.max_tokens;
    if (dpt_model_takes_any_context(&p->config) && text > 0 && text < p->config.model.context)
        p->config.model.context = (int)text;
}

static enum dpt_status read_weights(struct parts *p, struct dpt_err *err)
{
    p->flat_bytes = (size_t)dpt_model_flat_numel(p->model) * sizeof(float);
    DPT_TRY(dpt_device_alloc(p->device, p->flat_bytes, &p->flat, err));
    return dpt_ckpt_weights_read(p->weights, p->model, p->flat, err);
}

static enum dpt_status open_logprobs(struct parts *p, struct dpt_err *err)
{
    const char *path = p->options.logprobs;
    if (!path)
        return DPT_OK;
    p->candidates = calloc((size_t)dpt_vocab_size(p->vocab), sizeof *p->candidates);
    if (!p->candidates)
        return dpt_fail_nomem(err, "--logprobs");
    p->logprobs = fopen(path, "we");
    return p->logprobs ? DPT_OK : dpt_fail_errno(err, errno, "--logprobs: create '%s'", path);
}

static enum dpt_status open_parts(struct parts *p, struct dpt_err *err)
{
    const struct options *o = &p->options;
    const int cores = dpt_cores(), threads = cores < THREADS_MAX ? cores : THREADS_MAX;
    DPT_TRY(dpt_ckpt_weights_open(o->path, o->base, &p->config, &p->weights, err));
    DPT_TRY(open_vocab(p, err));
    DPT_TRY(dpt_ckpt_weights_ends(p->weights, &p->ends, err));
    DPT_TRY(encode_prompt(p, err));
    shorten_context(p);
    DPT_TRY(dpt_model_create(&p->config, &p->model, err));
    DPT_TRY(dpt_device_cpu_create(&p->device, err));
    DPT_TRY(
        dpt_stream_create(p->device, o->threads > 0 ? (int)o->threads : threads, &p->stream, err));
    DPT_TRY(read_weights(p, err));
    const struct dpt_generator_options options = {.model = p->model,
                                                  .device = p->device,
                                                  .stream = p->stream,
                                                  .flat = p->flat,
                                                  .tokens = dpt_vocab_size(p->vocab),
                                                  .sampling = o->sampling};
    DPT_TRY(dpt_generator_create(&options, &p->generator, err));
    return open_logprobs(p, err);
}

/* ---- the text ---- */

static enum dpt_status print_text(const uint8_t *text, size_t bytes, struct dpt_err *err)
{
    (void)fwrite(text, 1, bytes, stdout);
    return dpt_stdout_flush(err);
}

/* Prints any number of bytes in pieces of the stream's size. */
static enum dpt_status print_bytes(struct dpt_utf8_stream *stream, const uint8_t *bytes, size_t n,
                                   struct dpt_err *err)
{
    uint8_t text[DPT_UTF8_TEXT_BYTES];
    for (size_t at = 0; at < n; at += DPT_UTF8_PIECE_BYTES_MAX) {
        const size_t piece =
            n - at < DPT_UTF8_PIECE_BYTES_MAX ? n - at : (size_t)DPT_UTF8_PIECE_BYTES_MAX;
        DPT_TRY(print_text(text, dpt_utf8_stream_put(stream, bytes + at, piece, text), err));
    }
    return DPT_OK;
}

/* Writes the log-probabilities of the drawn token and of the top_k tokens. */
static enum dpt_status write_logprobs(struct parts *p, int32_t token, struct dpt_err *err)
{
    if (!p->logprobs)
        return DPT_OK;
    const float *logits = dpt_generator_logits(p->generator);
    const int v = dpt_vocab_size(p->vocab), top_k = p->options.sampling.top_k;
    const int n = top_k > 0 && top_k < v ? top_k : v;
    const double sum = dpt_token_choice_log_sum_exp(logits, v);
    dpt_token_choice_sort(logits, v, p->candidates);
    (void)fprintf(p->logprobs, "{\"token\": %d, \"logprob\": %.9g, \"top\": [", token,
                  (double)logits[token] - sum);
    for (int k = 0; k < n; k++)
        (void)fprintf(p->logprobs, "%s[%d, %.9g]", k > 0 ? ", " : "", p->candidates[k].token,
                      (double)p->candidates[k].logit - sum);
    (void)fputs("]}\n", p->logprobs);
    if (fflush(p->logprobs) != 0)
        return dpt_fail_errno(err, errno, "--logprobs: write '%s'", p->options.logprobs);
    return DPT_OK;
}

static bool ends_text(const struct parts *p, int32_t token)
{
    for (int i = 0; i < p->ends.n; i++)
        if (p->ends.id[i] == token)
            return true;
    return p->ends.n == 0 && token == dpt_vocab_end_of_text(p->vocab);
}

static enum dpt_status print_tokens(struct parts *p, int64_t *ret_drawn, struct dpt_err *err)
{
    struct dpt_utf8_stream stream = {0};
    uint8_t rest[DPT_UTF8_TEXT_BYTES];
    const uint8_t *prompt = (const uint8_t *)p->options.prompt;
    DPT_TRY(print_bytes(&stream, prompt, strlen(p->options.prompt), err));
    for (int64_t i = 0; i < p->options.max_tokens; i++) {
        int32_t token = 0;
        size_t bytes = 0;
        DPT_TRY(dpt_generator_next(p->generator, &token, err));
        *ret_drawn = i + 1;
        DPT_TRY(write_logprobs(p, token, err));
        if (ends_text(p, token))
            break;
        const uint8_t *text = dpt_vocab_token(p->vocab, token, &bytes);
        if (text)
            DPT_TRY(print_bytes(&stream, text, bytes, err));
    }
    DPT_TRY(print_text(rest, dpt_utf8_stream_end(&stream, rest), err));
    return print_text((const uint8_t *)"\n", 1, err);
}

static enum dpt_status generate_text(struct parts *p, struct dpt_err *err)
{
    const int64_t step = dpt_ckpt_weights_step(p->weights);
    char from[32] = "";
    int64_t drawn = 0;
    if (step >= 0)
        (void)snprintf(from, sizeof from, "step %lld, ", (long long)step);
    for (size_t i = 0; i < p->prompt.n; i++)
        dpt_generator_feed(p->generator, (int32_t)p->prompt.ids[i]);
    const int64_t seen = dpt_generator_seen(p->generator);
    if (seen < (int64_t)p->prompt.n)
        (void)fprintf(
            stderr,
            "dpt-ckpt: the prompt has %zu tokens, the model's context %lld: the model sees the "
            "last %lld\n",
            p->prompt.n, (long long)dpt_model_context(p->model), (long long)seen);
    const int64_t begin = dpt_now_ns();
    DPT_TRY(print_tokens(p, &drawn, err));
    const double seconds = (double)(dpt_now_ns() - begin) * 1e-9;
    (void)fprintf(stderr, "dpt-ckpt: %s%lld tokens in %.1f s (%.1f a second)\n", from,
                  (long long)drawn, seconds, seconds > 0 ? (double)drawn / seconds : 0.0);
    return DPT_OK;
}

enum dpt_status dpt_ckpt_generate(int argc, char *const *argv, struct dpt_err *err)
{
    struct parts *p = calloc(1, sizeof *p);
    if (!p)
        return dpt_fail_nomem(err, "generate");
    p->options = (struct options){.max_tokens = MAX_TOKENS_DEFAULT,
                                  .top_k = TOP_K_DEFAULT,
                                  .sampling = {.temperature = 0.8, .seed = SEED_DEFAULT}};
    enum dpt_status status = parse_command_line(argc, argv, &p->options, err);
    if (status == DPT_OK && p->options.help) {
        dpt_ckpt_generate_help(stdout);
    } else if (status == DPT_OK) {
        status = open_parts(p, err);
        if (status == DPT_OK)
            status = generate_text(p, err);
    }
    close_parts(p);
    free(p);
    return status;
}
