/* dpt-data verify: checks length, tokens and checksum of shards. */
#include "worker/data/prepare/commands.h"

#include "base/fs.h"
#include "base/parse.h"
#include "worker/data/prepare/record.h"
#include "worker/data/prepare/scan.h"
#include "worker/data/prepare/shards.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SUMS_BYTES_MAX = 16 << 20, VOCAB_GPT2 = 50257, VOCAB_LLAMA3 = 128256 };

static const char help[] =
    "usage: dpt-data verify [--vocab N] PATH…\n"
    "\n"
    "Reads every byte of token shards, or of all .bin files of a folder, and checks magic, "
    "version,\n"
    "length, that each token is one of 0 … N - 1 (default: what " DPT_RECORD_NAME
    " beside the shard\n"
    "says, else GPT-2's 50257, or Llama 3's 128256 of tokens of 32 bits), and\n"
    "the checksum where a file " DPT_SUMS_NAME
    " beside the shard has one. Of a folder every file that\n"
    "is named there must be there.\n"
    "\n"
    "Exit codes: 0 all good, 1 damaged or absent, 2 usage.\n";

struct verify {
    int64_t vocab; /* 0: the record's, or that of the shard's kind */
    int good, bad;
    int64_t tokens;
};

/* ---------------------------------------------------------------- SHA256SUMS */

/* The text of DIR/SHA256SUMS, owned; NULL: there is no such file. */
static enum dpt_status read_sums(const char *dir, char **ret, struct dpt_err *err)
{
    char path[PATH_MAX];
    size_t bytes;
    *ret = NULL;
    DPT_TRY(dpt_fs_join(dir, DPT_SUMS_NAME, path, sizeof path, err));
    const enum dpt_status status = dpt_fs_read_file(path, SUMS_BYTES_MAX, ret, &bytes, err);
    return status == DPT_ENOENT ? DPT_OK : status;
}

/* The next line "SUM  NAME" or "SUM *NAME" from *at on; false at the end. Lines of another form are
 * skipped, as by sha256sum. */
static bool next_sum(const char **at, char ret_sum[DPT_SHA256_HEX_BYTES], char ret_name[PATH_MAX])
{
    while (**at) {
        const char *line = *at;
        const size_t n = strcspn(line, "\n");
        *at = line + n + (line[n] == '\n');
        const size_t sum = strspn(line, "0123456789abcdef");
        if (sum != DPT_SHA256_HEX_BYTES - 1 || n < sum + 3 || line[sum] != ' ' ||
            (line[sum + 1] != ' ' && line[sum + 1] != '*') || n - sum - 2 >= PATH_MAX)
            continue;
        memcpy(ret_sum, line, sum);
        ret_sum[sum] = '\0';
        memcpy(ret_name, line + sum + 2, n - sum - 2);
        ret_name[n - sum - 2] = '\0';
        return true;
    }
    return false;
}

/* The checksum of `name`, if the list has one. */
static bool find_sum(const char *sums, const char *name, char ret_sum[DPT_SHA256_HEX_BYTES])
{
    char found[PATH_MAX];
    while (sums && next_sum(&sums, ret_sum, found))
        if (strcmp(found, name) == 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- one shard */

static enum dpt_status check_shard(const struct verify *verify, const struct dpt_scan *scan,
                                   const char *sum, struct dpt_err *err)
{
    struct dpt_record record;
    dpt_record_look(scan->shard.file.path, &record);
    const int64_t vocab = verify->vocab            ? verify->vocab
                          : record.vocab > 0       ? record.vocab
                          : scan->shard.width == 2 ? VOCAB_GPT2
                                                   : VOCAB_LLAMA3;
    if (scan->shard.tokens > 0 && scan->largest >= vocab)
        return dpt_fail(err, DPT_ECORRUPT,
                        "token %lld of '%s' is %u, at most %lld is expected; --vocab says how many "
                        "there are",
                        (long long)scan->largest_at, scan->shard.file.path, scan->largest,
                        (long long)vocab - 1);
    if (sum && strcmp(sum, scan->sha256) != 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is not the file of its line in " DPT_SUMS_NAME
                        ": its SHA-256 is %.12s…, not %.12s…; make or fetch it again",
                        scan->shard.file.path, scan->sha256, sum);
    return DPT_OK;
}

static void verify_file(struct verify *verify, char *path)
{
    char dir[PATH_MAX], sum[DPT_SHA256_HEX_BYTES], *sums = NULL;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct dpt_scan scan = {0};
    struct dpt_err err;
    bool listed = false;
    enum dpt_status status = dpt_fs_folder(path, dir, &err);
    if (status == DPT_OK)
        status = read_sums(dir, &sums, &err);
    if (status == DPT_OK)
        status = dpt_scan_shard(path, &scan, &err);
    if (status == DPT_OK) {
        listed = find_sum(sums, name, sum);
        status = check_shard(verify, &scan, listed ? sum : NULL, &err);
    }
    if (status == DPT_OK) {
        (void)printf("%s  good, %lld tokens, %s\n", path, (long long)scan.shard.tokens,
                     listed ? "checksum right" : "no checksum to compare");
        verify->good++;
        verify->tokens += scan.shard.tokens;
    } else {
        (void)dpt_data_complain(&err);
        verify->bad++;
    }
    dpt_scan_fini(&scan);
    free(sums);
}

/* ---------------------------------------------------------------- a folder */

/* Counts listed files that are absent as bad. verify_folder reads the files that are there. */
static enum dpt_status check_listed_files(struct verify *verify, const char *dir,
                                          struct dpt_err *err)
{
    char sum[DPT_SHA256_HEX_BYTES], name[PATH_MAX], path[PATH_MAX], *sums;
    DPT_TRY(read_sums(dir, &sums, err));
    enum dpt_status status = DPT_OK;
    for (const char *at = sums; status == DPT_OK && at && next_sum(&at, sum, name);) {
        status = dpt_fs_join(dir, name, path, sizeof path, err);
        if (status == DPT_OK && !dpt_fs_exists(path)) {
            (void)fprintf(stderr, "dpt-data: '%s' is named in " DPT_SUMS_NAME " and is not there\n",
                          path);
            verify->bad++;
        }
    }
    free(sums);
    return status;
}

static enum dpt_status verify_folder(struct verify *verify, const char *dir, struct dpt_err *err)
{
    char **names, path[PATH_MAX];
    size_t n;
    const int before = verify->good + verify->bad;
    DPT_TRY(check_listed_files(verify, dir, err));
    DPT_TRY(dpt_fs_list(dir, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        if (!dpt_fs_has_ending(names[i], "bin"))
            continue;
        status = dpt_fs_join(dir, names[i], path, sizeof path, err);
        if (status == DPT_OK)
            verify_file(verify, path);
    }
    dpt_fs_list_free(&names, n);
    if (status == DPT_OK && verify->good + verify->bad == before)
        return dpt_fail(err, DPT_ENOENT, "'%s' has no .bin files", dir);
    return status;
}

static void verify_path(struct verify *verify, char *path)
{
    struct stat st;
    struct dpt_err err;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        verify_file(verify, path);
    } else if (verify_folder(verify, path, &err) != DPT_OK) {
        (void)dpt_data_complain(&err);
        verify->bad++;
    }
}

int dpt_data_command_verify(int argc, char **argv)
{
    struct verify verify = {0};
    const struct dpt_option vocab = {"--vocab", "N", .number = &verify.vocab, .min = 1,
                                     .max = DPT_VOCAB_TOKENS_MAX};
    struct dpt_args args = {.argc = argc,
                            .argv = argv,
                            .help = help,
                            .path_name = "PATH",
                            .options = &vocab,
                            .n_options = 1};
    const int code = dpt_args_read(&args);
    if (code >= 0)
        return code;
    for (int i = 1; i <= args.n_paths; i++)
        verify_path(&verify, argv[i]);
    (void)printf("%d shard%s good, %lld tokens; %d bad\n", verify.good, verify.good == 1 ? "" : "s",
                 (long long)verify.tokens, verify.bad);
    return verify.bad > 0 ? DPT_DATA_EXIT_FAILED : 0;
}
