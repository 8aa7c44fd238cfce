/* The command line of dpt-trace (args.h). */
#include "worker/report/args.h"

#include "base/option.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: dpt-trace ddp | sharding [--trace-dir DIR | --trace-files FILE,FILE…] [OPTIONS]\n"
    "       dpt-trace compare [--trace-dir DIR]… [--trace-files FILE,FILE…] [--csv FILE]\n"
    "                         [OPTIONS]\n"
    "       dpt-trace diff A B [--rank R] [OPTIONS]\n"
    "       dpt-trace --help | --version\n"
    "\n"
    "Says where the time of the traced steps went. It reads the traces of dpt-worker (trace.dir)\n"
    "and of PyTorch's profiler.\n"
    "  ddp                    the strategies that replicate the training state: a page and a CSV\n"
    "                         in reports/STRATEGY\n"
    "  sharding               those that divide it, in reports_sharding/STRATEGY\n"
    "  compare                the newest window of each strategy, on one page in reports/compare\n"
    "  diff                   counts and durations of two windows by op, in reports/diff.csv; A\n"
    "                         and B are folders or files\n"
    "  --trace-dir DIR        a folder with traces, at any depth (traces)\n"
    "  --trace-files FILES    the files of one window, separated by commas; may be repeated\n"
    "  --select latest|all    the newest window of each strategy, or each window, in\n"
    "                         run_INDEX_TIME (latest)\n"
    "  --include-last-step    count also the last step of each trace\n"
    "  --enable-multiprocessing\n"
    "                         read files on all cores\n"
    "  --csv FILE             figures of other runs, to compare with\n"
    "  --rank R               of this rank only\n"
    "  --out DIR              a folder in place of reports or reports_sharding\n"
    "Exit codes: 0 done, 1 failed or no trace files found, 2 usage.\n";

void report_args_help(FILE *out)
{
    (void)fputs(usage, out);
}

void report_args_free(struct report_args *args)
{
    for (int i = 0; i < args->n_files; i++)
        free(args->files[i]);
    args->n_files = 0;
}

static enum dpt_status add_dir(void *ctx, const char *value, struct dpt_err *err)
{
    struct report_args *args = ctx;
    if (!*value)
        return dpt_fail(err, DPT_EINVAL, "expected a folder");
    if (args->n_dirs == REPORT_ARG_DIRS_MAX)
        return dpt_fail(err, DPT_EINVAL, "at most %d folders", REPORT_ARG_DIRS_MAX);
    args->dirs[args->n_dirs++] = value;
    return DPT_OK;
}

static enum dpt_status add_files(void *ctx, const char *value, struct dpt_err *err)
{
    struct report_args *args = ctx;
    while (true) {
        const size_t bytes = strcspn(value, ",");
        if (bytes == 0)
            return dpt_fail(err, DPT_EINVAL, "expected files separated by commas");
        if (args->n_files == REPORT_ARG_FILES_MAX)
            return dpt_fail(err, DPT_EINVAL, "at most %d files", REPORT_ARG_FILES_MAX);
        char *file = strndup(value, bytes);
        if (!file)
            return dpt_fail_nomem(err, "list of files");
        args->files[args->n_files++] = file;
        if (!value[bytes])
            return DPT_OK;
        value += bytes + 1;
    }
}

static enum dpt_status set_select(void *ctx, const char *value, struct dpt_err *err)
{
    struct report_args *args = ctx;
    if (strcmp(value, "all") != 0 && strcmp(value, "latest") != 0)
        return dpt_fail(err, DPT_EINVAL, "expected latest or all, got '%s'", value);
    args->all = strcmp(value, "all") == 0;
    return DPT_OK;
}

static enum dpt_status take_command(const char *word, enum report_command *ret, struct dpt_err *err)
{
    static const char *const words[] = {[REPORT_DDP] = "ddp",
                                        [REPORT_SHARDING] = "sharding",
                                        [REPORT_DIFF] = "diff",
                                        [REPORT_COMPARE] = "compare"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0) {
            *ret = (enum report_command)i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL,
                    "'%s' is not a command: expected ddp, sharding, compare or diff; see dpt-trace "
                    "--help",
                    word);
}

/* Rules between options. */
static enum dpt_status check_report_args(struct report_args *args, struct dpt_err *err)
{
    const bool one_window = args->command == REPORT_DDP || args->command == REPORT_SHARDING;
    if (args->command == REPORT_DIFF) {
        if (args->n_sides != 2)
            return dpt_fail(err, DPT_EINVAL,
                            "diff expects two windows, folders or files; see dpt-trace --help");
        if (args->n_dirs + args->n_files > 0 || args->all)
            return dpt_fail(err, DPT_EINVAL,
                            "diff takes A and B, not --trace-dir, --trace-files or --select all");
    } else if (args->n_sides > 0) {
        return dpt_fail(err, DPT_EINVAL, "'%s' is one word too many; see dpt-trace --help",
                        args->sides[0]);
    } else if (args->rank >= 0) {
        return dpt_fail(err, DPT_EINVAL, "--rank is an option of diff");
    }
    if (args->csv && args->command != REPORT_COMPARE)
        return dpt_fail(err, DPT_EINVAL, "--csv is an option of compare");
    if (args->all && args->command == REPORT_COMPARE)
        return dpt_fail(err, DPT_EINVAL, "compare takes the newest windows, not --select all");
    if (one_window && args->n_dirs > 0 && args->n_files > 0)
        return dpt_fail(err, DPT_EINVAL, "give --trace-dir or --trace-files, not both");
    if (one_window && args->n_dirs > 1)
        return dpt_fail(err, DPT_EINVAL, "give one --trace-dir");
    if (args->command != REPORT_DIFF && args->n_dirs + args->n_files == 0)
        args->dirs[args->n_dirs++] = "traces";
    return DPT_OK;
}

enum dpt_status report_args_read(int argc, char *const *argv, struct report_args *args,
                                 struct dpt_err *err)
{
    const struct dpt_option table[] = {
        {.name = "--trace-dir", .value = "DIR", .set = add_dir, .ctx = args},
        {.name = "--trace-files", .value = "FILES", .set = add_files, .ctx = args},
        {.name = "--select", .value = "latest|all", .set = set_select, .ctx = args},
        {.name = "--include-last-step", .flag = &args->include_last_step},
        {.name = "--enable-multiprocessing", .flag = &args->parallel},
        {.name = "--csv", .value = "FILE", .text = &args->csv},
        {.name = "--rank", .value = "R", .number = &args->rank, .min = 0, .max = 1 << 20},
        {.name = "--out", .value = "DIR", .text = &args->out},
    };
    bool has_command = false;
    *args = (struct report_args){.rank = -1};
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            DPT_TRY(dpt_option_read(table, sizeof table / sizeof *table, argc, argv, &i, err));
        } else if (!has_command) {
            DPT_TRY(take_command(argv[i], &args->command, err));
            has_command = true;
        } else if (args->n_sides == 2) {
            return dpt_fail(err, DPT_EINVAL, "'%s' is one word too many; see dpt-trace --help",
                            argv[i]);
        } else {
            args->sides[args->n_sides++] = argv[i];
        }
    }
    if (!has_command)
        return dpt_fail(err, DPT_EINVAL,
                        "expected ddp, sharding, compare or diff; see dpt-trace --help");
    return check_report_args(args, err);
}
