/* dpt-data inspect: the content of a shard, as numbers and as text. */
#include "worker/data/prepare/commands.h"

#include "base/parse.h"
#include "worker/data/prepare/record.h"
#include "worker/data/prepare/scan.h"
#include "worker/data/prepare/shards.h"
#include "worker/data/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_DEFAULT = 32, FIRST_MAX = 65536, FREQUENT = 10 };

static const char help[] = "usage: dpt-data inspect [OPTIONS] FILE…\n"
                           "\n"
                           "Prints a shard's header, how often its tokens occur, and the first of "
                           "them, as text where the\n"
                           "tokenizer is known: from " DPT_RECORD_NAME " beside the shard, or\n"
                           "\n"
                           "  --tokenizer NAME       bytes, gpt2 or hf\n"
                           "  --vocab-bpe FILE       of gpt2: OpenAI's vocab.bpe …\n"
                           "  --encoder-json FILE    … and encoder.json\n"
                           "  --any-vocab            take other files of that form\n"
                           "  --tokenizer-json FILE  of hf: a tokenizer.json of Hugging Face's\n"
                           "  --first N              tokens to show (default: 32)\n"
                           "\n"
                           "Exit codes: 0 done, 1 damaged or absent, 2 usage.\n";

struct inspect {
    struct dpt_vocab_options options;
    struct dpt_vocab *vocab; /* NULL: not known */
    int64_t first;
};

/* ---------------------------------------------------------------- text */

/* Whether this is a control character of two bytes: U+0080 … U+009F, which terminals obey, too. */
static bool is_c1(const uint8_t *text, size_t bytes)
{
    return bytes >= 2 && text[0] == 0xc2 && text[1] <= 0x9f;
}

/* Prints valid UTF-8 unchanged, and control characters and invalid bytes as \n or \xNN. */
static void print_escaped(const uint8_t *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t good = dpt_utf8_valid(text + at, bytes - at);
        for (size_t i = 0; i < good; i++) {
            const uint8_t c = text[at + i];
            if (is_c1(text + at + i, good - i))
                (void)printf("\\x%02x\\x%02x", c, text[at + ++i]);
            else if (c == '\n')
                (void)fputs("\\n", stdout);
            else if (c == '"' || c == '\\')
                (void)printf("\\%c", c);
            else if (c < 0x20 || c == 0x7f)
                (void)printf("\\x%02x", c);
            else
                (void)putchar(c);
        }
        at += good;
        if (at < bytes)
            (void)printf("\\x%02x", text[at++]);
    }
}

static void print_token(const struct inspect *inspect, int token)
{
    size_t bytes;
    const uint8_t *text = inspect->vocab ? dpt_vocab_token(inspect->vocab, token, &bytes) : NULL;
    if (!text)
        return;
    (void)fputs(" \"", stdout);
    print_escaped(text, bytes);
    (void)putchar('"');
}

static enum dpt_status print_text(const struct inspect *inspect, const int32_t *tokens, int64_t n,
                                  struct dpt_err *err)
{
    size_t room = 0, used = 0, bytes;
    for (int64_t i = 0; i < n; i++)
        if (dpt_vocab_token(inspect->vocab, tokens[i], &bytes))
            room += bytes;
    uint8_t *text = malloc(room + 1);
    if (!text)
        return dpt_fail_nomem(err, "inspect");
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *token = dpt_vocab_token(inspect->vocab, tokens[i], &bytes);
        if (token) {
            memcpy(text + used, token, bytes);
            used += bytes;
        }
    }
    (void)fputs("  as text        \"", stdout);
    print_escaped(text, used);
    (void)fputs("\"\n", stdout);
    free(text);
    return DPT_OK;
}

/* ---------------------------------------------------------------- the parts of the report */

static void print_counts(const struct inspect *inspect, const struct dpt_scan *scan)
{
    int most[FREQUENT], n = 0;
    int64_t distinct = 0;
    for (int t = 0; t < DPT_SCAN_TOKENS; t++) {
        distinct += scan->counts[t] > 0;
        int at = n;
        while (at > 0 && scan->counts[most[at - 1]] < scan->counts[t])
            at--;
        if (scan->counts[t] == 0 || at == FREQUENT)
            continue;
        n += n < FREQUENT;
        memmove(most + at + 1, most + at, (size_t)(n - at - 1) * sizeof *most);
        most[at] = t;
    }
    (void)printf("  distinct       %lld, the largest %u\n", (long long)distinct, scan->largest);
    for (int i = 0; i < n; i++) {
        (void)printf("  %-14s %6.2f%%  %6d", i == 0 ? "most frequent" : "",
                     100.0 * (double)scan->counts[most[i]] / (double)scan->shard.tokens, most[i]);
        print_token(inspect, most[i]);
        (void)putchar('\n');
    }
    const int end = inspect->vocab ? dpt_vocab_end_of_text(inspect->vocab) : -1;
    if (end >= 0 && end < DPT_SCAN_TOKENS && scan->counts[end] > 0)
        (void)printf("  documents      %lld begin here, %.1f tokens each\n",
                     (long long)scan->counts[end],
                     (double)scan->shard.tokens / (double)scan->counts[end]);
}

static enum dpt_status print_first(const struct inspect *inspect, const struct dpt_scan *scan,
                                   struct dpt_err *err)
{
    const int64_t n = scan->shard.tokens < inspect->first ? scan->shard.tokens : inspect->first;
    if (n == 0)
        return DPT_OK;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    if (!tokens)
        return dpt_fail_nomem(err, "inspect");
    enum dpt_status status = dpt_token_shard_read(&scan->shard, 0, n, INT32_MAX, tokens, err);
    if (status == DPT_OK) {
        (void)printf("  first %-8lld", (long long)n);
        for (int64_t i = 0; i < n; i++)
            (void)printf(" %d", tokens[i]);
        (void)putchar('\n');
        if (inspect->vocab)
            status = print_text(inspect, tokens, n, err);
    }
    free(tokens);
    return status;
}

static enum dpt_status inspect_file(struct inspect *inspect, char *path, struct dpt_err *err)
{
    struct dpt_scan scan;
    struct dpt_record record;
    dpt_record_look(path, &record);
    dpt_vocab_close(&inspect->vocab);
    if (inspect->options.by_options || strcmp(record.tokenizer, "bytes") == 0)
        DPT_TRY(dpt_vocab_open(&inspect->options, &inspect->vocab, err));
    DPT_TRY(dpt_scan_shard(path, &scan, err));
    const bool gpt2 = scan.shard.width == 2;
    (void)printf("%s\n", path);
    (void)printf("  header         magic %d, version %d: tokens of %d bits\n",
                 gpt2 ? DPT_SHARD_MAGIC_GPT2 : DPT_SHARD_MAGIC_LLAMA3,
                 gpt2 ? DPT_SHARD_VERSION_GPT2 : DPT_SHARD_VERSION_LLAMA3, 8 * scan.shard.width);
    (void)printf("  tokens         %lld, %lld bytes with the header\n",
                 (long long)scan.shard.tokens, (long long)scan.shard.file.bytes);
    (void)printf("  sha256         %s\n", scan.sha256);
    if (scan.shard.tokens > 0)
        print_counts(inspect, &scan);
    enum dpt_status status = print_first(inspect, &scan, err);
    if (!inspect->vocab)
        (void)printf("  as text        not shown: %s\n",
                     strcmp(record.tokenizer, "gpt2") == 0
                         ? "give --tokenizer gpt2 --vocab-bpe FILE --encoder-json FILE"
                     : strcmp(record.tokenizer, "hf") == 0
                         ? "give --tokenizer-json FILE"
                         : "its tokenizer is not known; --tokenizer names it");
    dpt_scan_fini(&scan);
    return status;
}

int dpt_data_command_inspect(int argc, char **argv)
{
    struct inspect inspect = {.first = FIRST_DEFAULT};
    struct dpt_args args;
    const struct dpt_option options[] = {
        {"--first", "N", .number = &inspect.first, .max = FIRST_MAX},
        DPT_VOCAB_OPTIONS(args, inspect.options),
    };
    args = (struct dpt_args){.argc = argc,
                             .argv = argv,
                             .help = help,
                             .path_name = "FILE",
                             .options = options,
                             .n_options = sizeof options / sizeof *options,
                             .vocab = &inspect.options};
    struct dpt_err err;
    int code = dpt_args_read(&args);
    if (code >= 0)
        return code;
    code = 0;
    for (int i = 1; i <= args.n_paths; i++)
        if (inspect_file(&inspect, argv[i], &err) != DPT_OK)
            code = dpt_data_complain(&err);
    dpt_vocab_close(&inspect.vocab);
    return code;
}
