/* The program dpt-trace: reports where the time of traced steps went. */
#include "base/stdout.h"
#include "worker/report/args.h"
#include "worker/report/commands.h"

#include <stdlib.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static enum dpt_status report_as_asked(const struct report_args *args, struct dpt_err *err)
{
    if (args->command == REPORT_DIFF)
        return report_command_diff(args, err);
    return args->command == REPORT_COMPARE ? report_command_compare(args, err)
                                           : report_command_windows(args, err);
}

static int run_trace_command(int argc, char **argv)
{
    static struct report_args args;
    struct dpt_err err;
    if (argc >= 2 && strcmp(argv[argc - 1], "--help") == 0) {
        report_args_help(stdout);
        return EXIT_SUCCESS;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("dpt-trace " DPT_VERSION "\n");
        return EXIT_SUCCESS;
    }
    int code = EXIT_SUCCESS;
    if (report_args_read(argc, argv, &args, &err) != DPT_OK)
        code = EXIT_USAGE;
    else if (report_as_asked(&args, &err) != DPT_OK)
        code = EXIT_FAILED;
    if (code != EXIT_SUCCESS)
        (void)fprintf(stderr, "dpt-trace: %s\n", err.text);
    report_args_free(&args);
    return code;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    const int code = run_trace_command(argc, argv);
    if (dpt_stdout_flush(&err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-trace: %s\n", err.text);
        return EXIT_FAILED;
    }
    return code;
}
