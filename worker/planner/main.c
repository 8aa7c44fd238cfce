/* dpt-plan: what a training run needs, by formulas. Nothing is started. */
#include "base/fs.h"
#include "base/stdout.h"
#include "worker/planner/args.h"
#include "worker/planner/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, WHAT_BYTES = 64 };

/* Machines and ranks that the command line does not give are the config's, else 1. */
static enum dpt_status resolve_shape(const struct dpt_source *source, struct dpt_world_shape *shape,
                                     struct dpt_err *err)
{
    const struct dpt_config *written = &source->written;
    const bool file = source->text != NULL;
    if (shape->machines == 0)
        shape->machines = file ? written->cluster.nnodes_max : 1;
    if (shape->each == 0)
        shape->each =
            file && written->cluster.gpus_per_node != DPT_AUTO ? written->cluster.gpus_per_node : 1;
    if ((int64_t)shape->machines * shape->each > DPT_CONFIG_WORLD_MAX)
        return dpt_fail(err, DPT_EINVAL,
                        "%d machines of %d ranks: a world has at most %d ranks; give fewer "
                        "--machines or --ranks",
                        shape->machines, shape->each, DPT_CONFIG_WORLD_MAX);
    return DPT_OK;
}

static const char *name_model(const struct dpt_source_args *args, char text[WHAT_BYTES])
{
    if (args->config || args->model)
        return args->config ? args->config : args->model;
    (void)snprintf(text, WHAT_BYTES, "a Llama");
    if (args->params > 0) {
        static const char *const units[] = {"", "K", "M", "B", "T"};
        double number = args->params;
        size_t unit = 0;
        for (; number >= 1000 && unit + 1 < sizeof units / sizeof *units; unit++)
            number /= 1000;
        (void)snprintf(text, WHAT_BYTES, "a Llama of %.4g%s parameters", number, units[unit]);
    }
    return text;
}

static enum dpt_status make_plan(const struct dpt_plan_args *args, const struct dpt_source *source,
                                 struct dpt_plan *plan, struct dpt_err *err)
{
    plan->machines = args->machines;
    DPT_TRY(resolve_shape(source, &plan->machines.shape, err));
    DPT_TRY(dpt_fit_model(source, plan->machines.shape, &plan->model, err));
    plan->parameters = args->source.params > 0 ? args->source.params : plan->model.parameters;
    DPT_TRY(dpt_estimate(&plan->machines, &plan->model, args->tokens, &plan->estimate, err));
    const struct dpt_fit_task task = {.source = source,
                                      .model = &plan->model,
                                      .shape = plan->machines.shape,
                                      .parameters = plan->parameters,
                                      .memory = plan->machines.memory};
    plan->strategy_unlisted = source->text && !dpt_plan_strategy_is_listed(&source->written);
    for (int i = 0; i < DPT_PLAN_STRATEGIES; i++)
        if (args->listed[i])
            DPT_TRY(
                dpt_fit_strategy(&task, &dpt_plan_strategies[i], &plan->fits[plan->n_fits++], err));
    return DPT_OK;
}

static enum dpt_status write_plan(const struct dpt_plan *plan, const char *json,
                                  struct dpt_err *err)
{
    const bool alone = json && strcmp(json, "-") == 0;
    if (!alone)
        dpt_report_print(plan, stdout);
    if (!json)
        return DPT_OK;
    json_t *object = dpt_report_json(plan);
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (!text)
        return dpt_fail_nomem(err, "plan as JSON");
    enum dpt_status status = DPT_OK;
    if (alone)
        (void)puts(text);
    else
        status = dpt_wrap(err, dpt_fs_write_file_atomic(json, text, strlen(text), err), "--json");
    free(text);
    return status;
}

/* The JSON has the path of the config. */
static enum dpt_status check_name(const struct dpt_plan_args *args, struct dpt_err *err)
{
    if (!args->json || !args->source.config)
        return DPT_OK;
    json_t *text = json_string(args->source.config);
    if (!text)
        return dpt_fail(err, DPT_EINVAL, "--config '%.200s': not UTF-8, which --json needs",
                        args->source.config);
    json_decref(text);
    return DPT_OK;
}

static enum dpt_status run_plan(const struct dpt_plan_args *args, struct dpt_err *err)
{
    static struct dpt_source source;
    static struct dpt_plan plan;
    char what[WHAT_BYTES];
    DPT_TRY(check_name(args, err));
    DPT_TRY(dpt_source_open(&args->source, &source, err));
    plan.what = name_model(&args->source, what);
    enum dpt_status status = make_plan(args, &source, &plan, err);
    dpt_source_close(&source);
    if (status == DPT_OK)
        status = write_plan(&plan, args->json, err);
    return status;
}

static int print_plan_error(const struct dpt_err *err)
{
    const bool usage = err->status == DPT_EINVAL;
    (void)fprintf(stderr, "dpt-plan: %s%s\n", err->text, usage ? "; see dpt-plan --help" : "");
    return usage || err->status == DPT_ECONFIG ? EXIT_USAGE : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct dpt_plan_args args;
    struct dpt_err err;
    enum dpt_status status = dpt_plan_args_read(argc, argv, &args, &err);
    if (status == DPT_OK && args.help)
        dpt_plan_args_help(stdout);
    else if (status == DPT_OK && args.version)
        (void)puts("dpt-plan " DPT_VERSION);
    else if (status == DPT_OK)
        status = run_plan(&args, &err);
    if (status == DPT_OK)
        status = dpt_stdout_flush(&err);
    return status == DPT_OK ? 0 : print_plan_error(&err);
}
