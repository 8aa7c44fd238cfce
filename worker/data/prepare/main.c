/* dpt-data: makes token shards of text, inspects and verifies them. */
#include "base/stdout.h"
#include "worker/data/prepare/commands.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: dpt-data encode [OPTIONS] --out DIR PATH…   texts (files, or folders of them) to "
    "shards\n"
    "       dpt-data inspect [OPTIONS] FILE…            shows the content of a shard\n"
    "       dpt-data verify [OPTIONS] PATH…             checks shards, or a folder of them\n"
    "       dpt-data COMMAND --help | --help | --version\n"
    "Exit codes: 0 done, 1 failed or damaged, 2 usage.\n";

static int run_data_command(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*command)(int argc, char **argv);
    } commands[] = {{"encode", dpt_data_command_encode},
                    {"inspect", dpt_data_command_inspect},
                    {"verify", dpt_data_command_verify}};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        (void)fputs(usage, stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("dpt-data " DPT_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].command(argc - 1, argv + 1);
    struct dpt_err err;
    (void)dpt_fail(&err, DPT_EINVAL,
                   "expected encode, inspect or verify, got '%.80s'; see dpt-data --help",
                   argc > 1 ? argv[1] : "");
    (void)dpt_data_complain(&err);
    return DPT_DATA_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    const int code = run_data_command(argc, argv);
    if (dpt_stdout_flush(&err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-data: %s\n", err.text);
        return DPT_DATA_EXIT_FAILED;
    }
    return code;
}
