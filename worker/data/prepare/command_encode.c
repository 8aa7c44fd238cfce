/* dpt-data encode: its options, the display of its progress, the summary at its end. */
#include "worker/data/prepare/commands.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/parse.h"
#include "worker/data/prepare/encode.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATHS_MAX = 65536, BAR_COLUMNS = 30 };

static const char help[] =
    "usage: dpt-data encode [OPTIONS] --out DIR PATH…\n"
    "\n"
    "Turns texts into token shards: DIR/train_NNNNNN.bin, DIR/val_NNNNNN.bin, for data.kind: "
    "tokens.\n"
    "A PATH is a text file, which is one document; a .jsonl file with a document a line; or a "
    "folder\n"
    "with any number of both. After a stop at any moment the same command continues and gives the\n"
    "same bytes.\n"
    "\n"
    "  --out DIR              folder of the shards; created if it is absent\n"
    "  --tokenizer NAME       bytes, gpt2 or hf (default: bytes, or the one whose files are "
    "given)\n"
    "  --vocab-bpe FILE       of gpt2: OpenAI's vocab.bpe …\n"
    "  --encoder-json FILE    … and encoder.json\n"
    "  --any-vocab            take other files of that form\n"
    "  --tokenizer-json FILE  of hf: a tokenizer.json of Hugging Face's\n"
    "  --val PATH             text for validation only; may be given again\n"
    "  --val-fraction F       a share (0.1) of the PATHs, drawn by lot, is for validation\n"
    "  --split UNIT           unit of the lot: document; line, for stretches of lines, each\n"
    "                         about 1/200 of the text (default: document, or line of a sole text)\n"
    "  --seed N               of the lot (default: 42)\n"
    "  --shard-tokens N       tokens of a shard (default: 100000000)\n"
    "  --text-key KEY         of .jsonl: the member that is the text (default: text)\n"
    "  --ext LIST             endings of files taken from folders, in any case\n"
    "                         (default: txt,text,md,rst,jsonl,ndjson)\n"
    "  --threads N            threads that encode (default: the cores)\n"
    "  --block-kib N          KiB that are read at a time (default: 1024)\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 usage, or files of a tokenizer that cannot be used.\n";

struct command {
    struct dpt_args args;
    struct dpt_encode_options encode;
    const char *endings;
    bool val[PATHS_MAX]; /* which of the paths are --val */
    bool split_given;
    int64_t seed, threads, block_kib;
};

/* ---------------------------------------------------------------- options */

static enum dpt_status set_val(void *ctx, const char *value, struct dpt_err *err)
{
    struct command *command = ctx;
    struct dpt_args *args = &command->args;
    if (args->n_paths >= PATHS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d paths: name a folder", PATHS_MAX);
    command->val[args->n_paths++] = true;
    args->argv[args->n_paths] = (char *)value;
    return DPT_OK;
}

static enum dpt_status set_val_fraction(void *ctx, const char *value, struct dpt_err *err)
{
    struct command *command = ctx;
    double *fraction = &command->encode.cut.val_fraction;
    DPT_TRY(dpt_parse_double(value, fraction, err));
    return *fraction > 0 && *fraction < 1
               ? DPT_OK
               : dpt_fail(err, DPT_EINVAL, "expected a number above 0 and below 1, got '%s'",
                          value);
}

static enum dpt_status set_split(void *ctx, const char *value, struct dpt_err *err)
{
    struct command *command = ctx;
    const bool line = strcmp(value, "line") == 0;
    if (!line && strcmp(value, "document") != 0)
        return dpt_fail(err, DPT_EINVAL, "expected document or line, got '%s'", value);
    command->encode.cut.unit = line ? DPT_UNIT_LINES : DPT_UNIT_DOCUMENT;
    command->split_given = true;
    return DPT_OK;
}

/* ---------------------------------------------------------------- progress */

struct progress_display {
    bool tty;
    int64_t start_ns, shown_ns;
    int64_t first_bytes; /* of the inputs, encoded before this start; -1: not known yet */
    bool any;            /* something was shown */
};

static double decimal_megabytes(int64_t bytes)
{
    return (double)bytes * 1e-6;
}

static void draw_bar(int64_t done, int64_t all, double rate)
{
    char bar[BAR_COLUMNS + 1];
    const int64_t filled = all > 0 ? done * BAR_COLUMNS / all : BAR_COLUMNS;
    for (int i = 0; i < BAR_COLUMNS; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_COLUMNS] = '\0';
    (void)fprintf(stderr, "\r[%s] %3d%%  %.1f of %.1f MB", bar,
                  (int)(all > 0 ? done * 100 / all : 100), decimal_megabytes(done),
                  decimal_megabytes(all));
    if (rate > 0)
        (void)fprintf(stderr, "  %.1f MB/s  %.0f s left", rate,
                      decimal_megabytes(all - done) / rate);
    (void)fputs("\033[K", stderr);
}

/* A bar ten times a second on a terminal, else a line every ten seconds. */
static void show_progress(void *ctx, int64_t done, int64_t all, int64_t tokens)
{
    struct progress_display *display = ctx;
    const int64_t now = dpt_now_ns(), second = 1000000000;
    if (display->first_bytes < 0)
        display->first_bytes = done;
    if (now - display->shown_ns < (display->tty ? second / 10 : 10 * second))
        return;
    const double rate =
        decimal_megabytes(done - display->first_bytes) / ((double)(now - display->start_ns) * 1e-9);
    display->shown_ns = now;
    display->any = true;
    if (display->tty)
        draw_bar(done, all, rate);
    else
        (void)fprintf(stderr, "dpt-data: %.1f of %.1f MB, %lld tokens, %.1f MB/s\n",
                      decimal_megabytes(done), decimal_megabytes(all), (long long)tokens, rate);
}

static void print_summary(const struct command *command, const struct dpt_inputs *inputs,
                          const struct dpt_encode_result *result, double seconds)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        (void)printf("%-5s  %lld tokens of %lld document%s in %d shard%s\n", dpt_split_names[s],
                     (long long)result->split[s].tokens, (long long)result->split[s].documents,
                     result->split[s].documents == 1 ? "" : "s", result->split[s].shards,
                     result->split[s].shards == 1 ? "" : "s");
    if (command->encode.vocab.kind == DPT_TOKENIZER_HF)
        (void)printf("the tokenizer has %d tokens: train with model.vocab: %d or more\n",
                     result->vocab, result->vocab);
    if (result->replaced > 0)
        (void)printf("%lld sequences of bytes that are no UTF-8 became U+FFFD\n",
                     (long long)result->replaced);
    if (inputs->left_out > 0)
        (void)printf("%lld files of folders were left out: their names do not end in %s\n",
                     (long long)inputs->left_out, command->endings);
    if (result->was_done) {
        (void)printf("%s: was done already\n", command->encode.out);
        return;
    }
    if (result->resumed_bytes > 0)
        (void)printf("continued after %.1f MB of an earlier start\n",
                     decimal_megabytes(result->resumed_bytes));
    const double done = decimal_megabytes(inputs->bytes - result->resumed_bytes);
    (void)printf("%s: %.1f MB in %.1f s, %.1f MB/s\n", command->encode.out, done, seconds,
                 seconds > 0 ? done / seconds : 0);
}

/* ---------------------------------------------------------------- the command */

static enum dpt_status list_inputs(struct command *command, struct dpt_inputs *inputs,
                                   struct dpt_err *err)
{
    const struct dpt_args *args = &command->args;
    char **paths = args->argv + 1;
    if (args->n_paths > PATHS_MAX)
        return dpt_fail(err, DPT_ECONFIG, "more than %d paths: name a folder", PATHS_MAX);
    for (int i = 0; i < args->n_paths; i++)
        DPT_TRY(dpt_inputs_add(inputs, paths[i], command->endings, command->val[i], err));
    if (inputs->n == 0)
        return dpt_fail(err, DPT_ENOENT, "there is no text: '%s' %s", paths[0],
                        inputs->left_out > 0 ? "has no file of the endings of --ext" : "is empty");
    if (!command->split_given && inputs->n == 1 && !inputs->files[0].jsonl)
        command->encode.cut.unit = DPT_UNIT_LINES;
    return DPT_OK;
}

static int run_encode(struct command *command)
{
    struct dpt_inputs inputs = {0};
    struct dpt_encode_result result;
    struct dpt_err err;
    struct progress_display display = {
        .tty = isatty(STDERR_FILENO), .start_ns = dpt_now_ns(), .first_bytes = -1};
    display.shown_ns = display.start_ns;
    command->encode.progress = show_progress;
    command->encode.progress_ctx = &display;
    enum dpt_status status = list_inputs(command, &inputs, &err);
    if (status == DPT_OK)
        status = dpt_encode(&command->encode, &inputs, &result, &err);
    command->encode.progress_ctx = NULL;
    if (display.tty && display.any)
        (void)fprintf(stderr, "\r\033[K");
    if (status == DPT_OK)
        print_summary(command, &inputs, &result, (double)(dpt_now_ns() - display.start_ns) * 1e-9);
    else if (status == DPT_ENOSPC)
        (void)dpt_wrap(&err, status,
                       "the disk is full; free space and run this command again to continue");
    dpt_inputs_fini(&inputs);
    if (status == DPT_OK)
        return 0;
    (void)dpt_data_complain(&err);
    return status == DPT_ECONFIG ? DPT_DATA_EXIT_USAGE : DPT_DATA_EXIT_FAILED;
}

int dpt_data_command_encode(int argc, char **argv)
{
    static struct command c;
    struct dpt_encode_options *o = &c.encode;
    const struct dpt_option options[] = {
        {"--out", "DIR", .text = &o->out},
        {"--val", "PATH", .set = set_val, .ctx = &c},
        {"--val-fraction", "F", .set = set_val_fraction, .ctx = &c},
        {"--split", "UNIT", .set = set_split, .ctx = &c},
        {"--seed", "N", .number = &c.seed, .max = INT64_MAX},
        {"--shard-tokens", "N", .number = &o->shard_tokens, .min = 1, .max = INT32_MAX},
        {"--text-key", "KEY", .text = &o->text_key},
        {"--ext", "LIST", .text = &c.endings},
        {"--threads", "N", .number = &c.threads, .min = 1, .max = DPT_ENCODE_THREADS_MAX},
        {"--block-kib", "N", .number = &c.block_kib, .min = DPT_BLOCK_BYTES_MIN / 1024,
         .max = DPT_BLOCK_BYTES_MAX / 1024},
        DPT_VOCAB_OPTIONS(c.args, o->vocab),
    };
    const int n_cores = dpt_cores();
    c = (struct command){.args = {.argc = argc,
                                  .argv = argv,
                                  .help = help,
                                  .path_name = "PATH",
                                  .options = options,
                                  .n_options = sizeof options / sizeof *options,
                                  .n_required = 1,
                                  .vocab = &o->vocab},
                         .encode = {.text_key = "text", .shard_tokens = 100000000},
                         .endings = "txt,text,md,rst,jsonl,ndjson",
                         .seed = 42,
                         .threads =
                             n_cores < DPT_ENCODE_THREADS_MAX ? n_cores : DPT_ENCODE_THREADS_MAX,
                         .block_kib = 1024};
    const int code = dpt_args_read(&c.args);
    if (code >= 0)
        return code;
    o->cut.seed = (uint64_t)c.seed;
    o->cut.block_bytes = (size_t)c.block_kib * 1024;
    o->threads = (int)c.threads;
    return run_encode(&c);
}
