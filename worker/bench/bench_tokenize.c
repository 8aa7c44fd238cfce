/* dpt-bench tokenize: how fast text becomes tokens, GPT-2's or a tokenizer.json's, on one core and
 * on all.
 *
 * Each measurement encodes the whole text with a new encoder, so it includes the first encoding of
 * every word. The vocabulary is loaded once, and its loading is timed separately. With several
 * threads, each thread encodes the whole text. The rate of one core is also given in CPU time of
 * its thread, which other work on the machine changes little. */
#include "base/clock.h"
#include "base/fs.h"
#include "base/median.h"
#include "worker/bench/bench.h"
#include "worker/data/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TEXT_BYTES_MAX = DPT_ENCODE_BYTES_MAX, THREADS_MAX = DPT_BENCH_THREADS_MAX };

struct job {
    const struct dpt_vocab *vocab;
    const char *text;
    size_t bytes, tokens;
    enum dpt_status status;
    struct dpt_err err;
};

struct jobs {
    struct job job[THREADS_MAX];
    int threads;
};

static void *tokenize_thread(void *ctx)
{
    struct job *job = ctx;
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens tokens = {0};
    job->status = dpt_encoder_create(job->vocab, &encoder, &job->err);
    if (job->status == DPT_OK)
        job->status = dpt_encoder_encode(encoder, job->text, job->bytes, &tokens, &job->err);
    job->tokens = tokens.n;
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
    return NULL;
}

static void encode_on_all(void *ctx)
{
    struct jobs *jobs = ctx;
    pthread_t threads[THREADS_MAX];
    int started = 1;
    while (started < jobs->threads &&
           pthread_create(&threads[started], NULL, tokenize_thread, &jobs->job[started]) == 0)
        started++;
    for (int i = started; i < jobs->threads; i++)
        jobs->job[i].status = dpt_fail(&jobs->job[i].err, DPT_EIO, "a thread did not start");
    (void)tokenize_thread(&jobs->job[0]);
    for (int i = 1; i < started; i++)
        (void)pthread_join(threads[i], NULL);
}

/* MB/s of all threads together. */
static enum dpt_status measure_threads(struct jobs *jobs, int threads, int64_t repeats, double *ret,
                                       struct dpt_err *err)
{
    jobs->threads = threads;
    const struct dpt_bench_time time = dpt_bench_time(repeats, encode_on_all, jobs);
    for (int i = 0; i < threads; i++)
        if (jobs->job[i].status != DPT_OK) {
            *err = jobs->job[i].err;
            return jobs->job[i].status;
        }
    *ret = 1e-6 * (double)jobs->job[0].bytes * threads / time.median_s;
    return DPT_OK;
}

static double cpu_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* MB per second of CPU time of one thread; the median. */
static enum dpt_status measure_cpu(struct job *job, int64_t repeats, double *ret,
                                   struct dpt_err *err)
{
    double times[DPT_BENCH_REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        const double start = cpu_s();
        (void)tokenize_thread(job);
        times[i] = cpu_s() - start;
        if (job->status != DPT_OK) {
            *err = job->err;
            return job->status;
        }
    }
    dpt_sort_doubles(times, (int)repeats);
    *ret = 1e-6 * (double)job->bytes / times[repeats / 2];
    return DPT_OK;
}

static struct {
    const char *text, *bpe, *json, *tokenizer_json;
    bool any_vocab;
    struct dpt_bench_compute compute;
} args = {.compute = {.repeats = DPT_BENCH_REPEATS}};

static const struct dpt_option options[] = {
    {"--text", "FILE", "the text to encode", .text = &args.text},
    {"--vocab-bpe", "FILE", "the merges of GPT-2's tokenizer", .text = &args.bpe},
    {"--encoder-json", "FILE", "its vocabulary", .text = &args.json},
    {"--any-vocab", .help = "accepts files other than OpenAI's", .flag = &args.any_vocab},
    {"--tokenizer-json", "FILE", "a tokenizer.json instead of GPT-2's tokenizer",
     .text = &args.tokenizer_json},
    DPT_BENCH_THREADS_OPTION(args.compute.threads),
    DPT_BENCH_REPEATS_OPTION(args.compute.repeats)};

static enum dpt_status measure_all(const struct dpt_vocab *vocab, double load_ms,
                                   json_t **ret_report, struct dpt_err *err)
{
    static struct jobs jobs;
    const int threads = dpt_bench_threads(&args.compute);
    const int64_t repeats = args.compute.repeats;
    char *text = NULL;
    size_t bytes = 0;
    double one = 0, all = 0, cpu = 0;
    enum dpt_status status = dpt_fs_read_file(args.text, TEXT_BYTES_MAX, &text, &bytes, err);
    for (int i = 0; i < threads; i++)
        jobs.job[i] = (struct job){.vocab = vocab, .text = text, .bytes = bytes};
    if (status == DPT_OK)
        status = measure_threads(&jobs, 1, repeats, &one, err);
    if (status == DPT_OK)
        status = measure_threads(&jobs, threads, repeats, &all, err);
    if (status == DPT_OK)
        status = measure_cpu(&jobs.job[0], repeats, &cpu, err);
    free(text);
    if (status != DPT_OK)
        return status;
    printf("%zu bytes, %zu tokens: %.1f MB/s on one core (%.1f MB in a second of its time), %.1f "
           "MB/s with %d threads; vocabulary loaded in %.1f ms\n",
           bytes, jobs.job[0].tokens, one, cpu, all, threads, load_ms);
    *ret_report = json_pack("{s:s,s:s,s:I,s:I,s:f,s:f,s:i,s:f,s:f}", "bench", "tokenize", "text",
                            args.text, "bytes", (json_int_t)bytes, "tokens",
                            (json_int_t)jobs.job[0].tokens, "mb_per_s_core", one, "mb_per_cpu_s",
                            cpu, "threads", threads, "mb_per_s_all", all, "load_ms", load_ms);
    return DPT_OK;
}

static enum dpt_status run_tokenize(json_t **ret_report, struct dpt_err *err)
{
    if (!args.text || !(args.tokenizer_json || (args.bpe && args.json)))
        return dpt_fail(
            err, DPT_EINVAL,
            "needs --text, and --tokenizer-json or both --vocab-bpe and --encoder-json");
    const struct dpt_vocab_options vocab_options = {
        .kind = args.tokenizer_json ? DPT_TOKENIZER_HF : DPT_TOKENIZER_GPT2,
        .vocab_bpe = args.bpe,
        .encoder_json = args.json,
        .any_vocab = args.any_vocab,
        .tokenizer_json = args.tokenizer_json,
        .by_options = true};
    struct dpt_vocab *vocab = NULL;
    const int64_t start = dpt_now_ns();
    DPT_TRY(dpt_vocab_open(&vocab_options, &vocab, err));
    const double load_ms = (double)(dpt_now_ns() - start) * 1e-6;
    const enum dpt_status status = measure_all(vocab, load_ms, ret_report, err);
    dpt_vocab_close(&vocab);
    return status;
}

const struct dpt_bench dpt_bench_tokenize = {
    .name = "tokenize",
    .help = "the rate of text to tokens, on one core and on all",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_tokenize};
