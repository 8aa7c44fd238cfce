/* dpt-bench tokenize: how fast text becomes tokens, GPT-2's or a tokenizer.json's, on one core and
 * on all.
 *
 * Each measurement encodes the whole text with a new encoder, so it includes the first encoding of
 * every word. The vocabulary is loaded once, and its loading is timed separately. With several
 * threads, each thread encodes the whole text. The rate of one core is also given in CPU time of
 * its thread, which other work on the machine changes little. */
#include "base/clock.h"
#include "base/fs.h"
#include "worker/bench/bench.h"
#include "worker/data/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATH_BYTES = 1024, TEXT_BYTES_MAX = DPT_ENCODE_BYTES_MAX, THREADS_MAX = 128, ARGS_MAX = 16 };

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

static void *encode(void *ctx)
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
           pthread_create(&threads[started], NULL, encode, &jobs->job[started]) == 0)
        started++;
    for (int i = started; i < jobs->threads; i++)
        jobs->job[i].status = dpt_fail(&jobs->job[i].err, DPT_EIO, "a thread did not start");
    (void)encode(&jobs->job[0]);
    for (int i = 1; i < started; i++)
        (void)pthread_join(threads[i], NULL);
}

/* MB/s of all threads together. */
static enum dpt_status measure_threads(struct jobs *jobs, int threads, int repeats, double *ret,
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
static enum dpt_status measure_cpu(struct job *job, int repeats, double *ret, struct dpt_err *err)
{
    double times[DPT_BENCH_REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        const double start = cpu_s();
        (void)encode(job);
        times[i] = cpu_s() - start;
        if (job->status != DPT_OK) {
            *err = job->err;
            return job->status;
        }
    }
    dpt_bench_sort(times, repeats);
    *ret = 1e-6 * (double)job->bytes / times[repeats / 2];
    return DPT_OK;
}

/* ---------------------------------------------------------------- arguments */

struct paths {
    char text[PATH_BYTES], bpe[PATH_BYTES], json[PATH_BYTES], tokenizer_json[PATH_BYTES];
    bool any_vocab;
};

/* The flags of this bench alone; parse_tokenize_args removes them before the flags of every bench
 * are parsed. */
static const char own_flags[] =
    "[--text FILE] [--vocab-bpe FILE] [--encoder-json FILE] [--any-vocab] [--tokenizer-json FILE]";

static bool parse_tokenize_args(int argc, char **argv, struct paths *paths,
                                struct dpt_bench_args *args)
{
    char *rest[ARGS_MAX];
    int n = 0;
    for (int i = 0; i < argc && n < ARGS_MAX; i++) {
        char *to = strcmp(argv[i], "--text") == 0             ? paths->text
                   : strcmp(argv[i], "--vocab-bpe") == 0      ? paths->bpe
                   : strcmp(argv[i], "--encoder-json") == 0   ? paths->json
                   : strcmp(argv[i], "--tokenizer-json") == 0 ? paths->tokenizer_json
                                                              : NULL;
        if (strcmp(argv[i], "--any-vocab") == 0)
            paths->any_vocab = true;
        else if (to && i + 1 < argc)
            (void)snprintf(to, PATH_BYTES, "%s", argv[++i]);
        else
            rest[n++] = argv[i];
    }
    if (!dpt_bench_parse(n, rest, own_flags, args))
        return false;
    const bool found =
        paths->text[0] && (paths->tokenizer_json[0] || (paths->bpe[0] && paths->json[0]));
    if (!found)
        (void)fprintf(stderr, "dpt-bench tokenize: needs --text, and --tokenizer-json or both "
                              "--vocab-bpe and --encoder-json\n");
    return found;
}

/* ---------------------------------------------------------------- the bench */

static enum dpt_status measure_all(const struct paths *paths, const struct dpt_bench_args *args,
                                   json_t **ret_report, struct dpt_err *err)
{
    static struct jobs jobs;
    const struct dpt_vocab_options options = {.kind = paths->tokenizer_json[0] ? DPT_TOKENIZER_HF
                                                                               : DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = paths->bpe,
                                              .encoder_json = paths->json,
                                              .any_vocab = paths->any_vocab,
                                              .tokenizer_json = paths->tokenizer_json,
                                              .by_options = true};
    struct dpt_vocab *vocab = NULL;
    char *text = NULL;
    size_t bytes = 0;
    double one = 0, all = 0, cpu = 0;
    const int64_t start = dpt_now_ns();
    DPT_TRY(dpt_vocab_open(&options, &vocab, err));
    const double load_ms = (double)(dpt_now_ns() - start) * 1e-6;
    enum dpt_status status = dpt_fs_read_file(paths->text, TEXT_BYTES_MAX, &text, &bytes, err);
    for (int i = 0; i < args->threads; i++)
        jobs.job[i] = (struct job){.vocab = vocab, .text = text, .bytes = bytes};
    if (status == DPT_OK)
        status = measure_threads(&jobs, 1, args->repeats, &one, err);
    if (status == DPT_OK)
        status = measure_threads(&jobs, args->threads, args->repeats, &all, err);
    if (status == DPT_OK)
        status = measure_cpu(&jobs.job[0], args->repeats, &cpu, err);
    free(text);
    dpt_vocab_close(&vocab);
    if (status != DPT_OK)
        return status;
    printf("%zu bytes, %zu tokens: %.1f MB/s on one core (%.1f MB in a second of its time), %.1f "
           "MB/s with %d threads; vocabulary loaded in %.1f ms\n",
           bytes, jobs.job[0].tokens, one, cpu, all, args->threads, load_ms);
    *ret_report = json_pack("{s:s,s:s,s:I,s:I,s:f,s:f,s:i,s:f,s:f}", "bench", "tokenize", "text",
                            paths->text, "bytes", (json_int_t)bytes, "tokens",
                            (json_int_t)jobs.job[0].tokens, "mb_per_s_core", one, "mb_per_cpu_s",
                            cpu, "threads", args->threads, "mb_per_s_all", all, "load_ms", load_ms);
    return DPT_OK;
}

static int run_tokenize(int argc, char **argv)
{
    struct paths paths = {0};
    struct dpt_bench_args args;
    struct dpt_err err;
    json_t *report = NULL;
    if (!parse_tokenize_args(argc, argv, &paths, &args))
        return 2;
    if (measure_all(&paths, &args, &report, &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench tokenize: %s\n", err.text);
        return 1;
    }
    return dpt_bench_finish(&args, report);
}

const struct dpt_bench dpt_bench_tokenize = {
    .name = "tokenize", .help = "text to GPT-2 tokens, MB/s a core", .run = run_tokenize};
