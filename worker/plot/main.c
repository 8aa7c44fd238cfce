/* The program dpt-plot: draws the logs of runs to SVG and PNG. */
#include "base/array.h"
#include "base/fs.h"
#include "base/option.h"
#include "base/stdout.h"
#include "worker/plot/picture.h"
#include "worker/plot/png.h"
#include "worker/plot/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_LEFT_OUT = 1, EXIT_FAILED = 2 };
enum { OUTPUTS_MAX = 8, PIXELS_MIN = 400, PIXELS_MAX = 8000 };

static const char usage[] =
    "usage: dpt-plot [--out FILE]… [--title TEXT] [--width PIXELS] RUN…\n"
    "       dpt-plot --help | --version\n"
    "\n"
    "Draws loss, throughput, learning rate and memory of a run over its steps, with a line for\n"
    "each generation and each failure. Several runs (8 at most) are drawn into one picture. RUN is "
    "the\n"
    "log.dir of a run, or a metrics.jsonl with events.jsonl beside it.\n"
    "  --out FILE      a picture to write, FILE.svg or FILE.png; may be given again\n"
    "                  (default: plot.svg and plot.png in this folder)\n"
    "  --title TEXT    title of the picture (default: the name of the run)\n"
    "  --width PIXELS  width of a PNG, from 400 to 8000 (default: 1200)\n"
    "Values that are not finite leave a gap. If a step was computed again, its last line counts.\n"
    "Exit codes: 0 done, 1 drawn, lines that are not records were left out, 2 not drawn.\n";

struct arguments {
    const char *out[OUTPUTS_MAX], *runs[PLOT_RUNS_MAX];
    int n_out, n_runs;
    const char *title;
    int64_t width;
};

static enum dpt_status add_output(void *ctx, const char *value, struct dpt_err *err)
{
    struct arguments *a = ctx;
    if (!dpt_fs_has_ending(value, "svg,png"))
        return dpt_fail(err, DPT_EINVAL, "expected a file that ends with .svg or .png, got '%s'",
                        value);
    if (a->n_out == OUTPUTS_MAX)
        return dpt_fail(err, DPT_EINVAL, "at most %d files", OUTPUTS_MAX);
    a->out[a->n_out++] = value;
    return DPT_OK;
}

static enum dpt_status read_arguments(int argc, char *const *argv, struct arguments *a,
                                      struct dpt_err *err)
{
    const struct dpt_option table[] = {
        {.name = "--out", .value = "FILE", .set = add_output, .ctx = a},
        {.name = "--title", .value = "TEXT", .text = &a->title},
        {.name = "--width",
         .value = "PIXELS",
         .number = &a->width,
         .min = PIXELS_MIN,
         .max = PIXELS_MAX},
    };
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0)
            DPT_TRY(dpt_option_read(table, sizeof table / sizeof *table, argc, argv, &i, err));
        else if (a->n_runs == PLOT_RUNS_MAX)
            return dpt_fail(err, DPT_EINVAL, "'%s' is one run too many: at most %d in one picture",
                            argv[i], PLOT_RUNS_MAX);
        else
            a->runs[a->n_runs++] = argv[i];
    }
    if (a->n_runs == 0)
        return dpt_fail(err, DPT_EINVAL, "expected the log.dir of a run; see dpt-plot --help");
    if (a->n_out == 0) {
        a->out[a->n_out++] = "plot.svg";
        if (plot_has_png())
            a->out[a->n_out++] = "plot.png";
    }
    return DPT_OK;
}

static void warn_of_bad_lines(const struct plot_file *file)
{
    if (file->lines_bad > 0)
        (void)fprintf(stderr, "dpt-plot: '%s': %lld %s left out; the first is line %lld\n",
                      file->path, (long long)file->lines_bad,
                      file->lines_bad == 1 ? "line is not a record and was"
                                           : "lines are not records and were",
                      (long long)file->first_bad);
}

/* Runs of one name are told apart by their paths. */
static void name_runs(const struct arguments *a, struct plot_run *runs)
{
    bool is_shared[PLOT_RUNS_MAX] = {false};
    for (int i = 0; i < a->n_runs; i++)
        for (int k = 0; k < a->n_runs; k++)
            is_shared[i] |= k != i && strcmp(runs[i].name, runs[k].name) == 0;
    for (int i = 0; i < a->n_runs; i++)
        if (is_shared[i])
            (void)snprintf(runs[i].name, sizeof runs[i].name, "%.*s", PLOT_TEXT_BYTES - 1,
                           a->runs[i]);
}

static enum dpt_status write_pictures(const struct arguments *a, const struct plot_run *runs,
                                      struct dpt_err *err)
{
    char *svg = NULL;
    size_t bytes = 0;
    const int width = (int)a->width;
    const int height = plot_height(a->n_runs) * width / PLOT_WIDTH;
    DPT_TRY(plot_picture(runs, a->n_runs, a->title, &svg, &bytes, err));
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < a->n_out && status == DPT_OK; i++) {
        status = dpt_fs_has_ending(a->out[i], "png")
                     ? plot_write_png(svg, bytes, width, height, a->out[i], err)
                     : dpt_fs_write_file_atomic(a->out[i], svg, bytes, err);
        if (status == DPT_OK)
            (void)printf("%s\n", a->out[i]);
    }
    free(svg);
    return status;
}

static int plot_runs(const struct arguments *a, struct plot_run *runs, struct dpt_err *err)
{
    int64_t lines_bad = 0;
    for (int i = 0; i < a->n_runs; i++) {
        if (plot_run_read(a->runs[i], &runs[i], err) != DPT_OK)
            return EXIT_FAILED;
        warn_of_bad_lines(&runs[i].metrics);
        warn_of_bad_lines(&runs[i].events);
        lines_bad += runs[i].metrics.lines_bad + runs[i].events.lines_bad;
    }
    name_runs(a, runs);
    if (write_pictures(a, runs, err) != DPT_OK)
        return EXIT_FAILED;
    return lines_bad > 0 ? EXIT_LEFT_OUT : EXIT_SUCCESS;
}

static int run_plot_command(int argc, char **argv)
{
    static struct plot_run runs[PLOT_RUNS_MAX];
    struct arguments a = {.width = PLOT_WIDTH};
    struct dpt_err err;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        (void)fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("dpt-plot " DPT_VERSION "\n");
        return EXIT_SUCCESS;
    }
    int code = EXIT_FAILED;
    if (read_arguments(argc, argv, &a, &err) == DPT_OK)
        code = plot_runs(&a, runs, &err);
    if (code == EXIT_FAILED)
        (void)fprintf(stderr, "dpt-plot: %s\n", err.text);
    for (int i = 0; i < a.n_runs; i++)
        plot_run_free(&runs[i]);
    return code;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    const int code = run_plot_command(argc, argv);
    if (dpt_stdout_flush(&err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-plot: %s\n", err.text);
        return EXIT_FAILED;
    }
    return code;
}
