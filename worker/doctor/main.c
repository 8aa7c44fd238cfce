/* dpt-doctor: why a run is slow, does not start, or hangs. */
#include "base/clock.h"
#include "base/stdout.h"
#include "worker/doctor/args.h"
#include "worker/doctor/machine_page.h"
#include "worker/doctor/nccl_read.h"
#include "worker/doctor/net.h"
#include "worker/doctor/report.h"
#include "worker/doctor/run_log.h"

#include <poll.h>
#include <string.h>

enum { EXIT_FOUND = 1, EXIT_USAGE = 2 };

static struct dpt_findings findings;

/* Whether people read the standard output. */
static bool prints_page(const struct dpt_doctor_args *args)
{
    return !args->json || strcmp(args->json, "-") != 0;
}

/* Adds the lines to the result (taken; NULL: no memory), and writes it. */
static enum dpt_status write_json(const struct dpt_doctor_args *args, json_t *result,
                                  struct dpt_err *err)
{
    if (!args->json) {
        json_decref(result);
        return DPT_OK;
    }
    if (!result || json_object_set_new(result, "findings", dpt_findings_json(&findings)) != 0) {
        json_decref(result);
        return dpt_fail_nomem(err, "report as JSON");
    }
    return dpt_report_write(result, args->json, err);
}

/* ---- the commands ---- */

static enum dpt_status examine_machine(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    static struct dpt_gpus gpus;
    static struct dpt_nics nics;
    static struct dpt_nccl_log log;
    DPT_TRY(dpt_machine_examine(args, &gpus, &nics, &findings, err));
    if (args->nccl_log) {
        DPT_TRY(dpt_wrap(err, dpt_nccl_log_read(args->nccl_log, &log, err), "--nccl-log"));
        dpt_nccl_log_judge(&log, &findings);
    }
    if (prints_page(args)) {
        dpt_findings_print(&findings, stdout);
        dpt_report_print_gpus(&gpus, &nics, stdout);
        if (args->nccl_log)
            dpt_report_print_nccl(&log, stdout);
    }
    json_t *result = json_pack("{s:o, s:o, s:o}", "gpus", dpt_report_json_gpus(&gpus), "network",
                               dpt_report_json_nics(&nics), "nccl",
                               args->nccl_log ? dpt_report_json_nccl(&log) : json_null());
    return write_json(args, result, err);
}

static enum dpt_status measure_links(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    static struct dpt_matrix matrix;
    static struct dpt_run_nodes run;
    if (args->command == DPT_DOCTOR_RUN) {
        DPT_TRY(dpt_run_nodes_ask(args, &run, err));
        DPT_TRY(dpt_net_measure_run(args, &run, &matrix, err));
    } else {
        dpt_net_measure_peers(args, &matrix);
    }
    dpt_matrix_judge(&matrix, &findings);
    if (prints_page(args)) {
        dpt_report_print_matrix(&matrix, stdout);
        dpt_findings_print(&findings, stdout);
    }
    return write_json(args, dpt_report_json_matrix(&matrix), err);
}

static enum dpt_status watch_run(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    static struct dpt_hang_view earlier, later;
    struct dpt_hang hang;
    const int64_t until_ms = dpt_now_ms() + args->seconds * 1000;
    DPT_TRY(dpt_hang_ask(args->server, args->run, args->timeout_ms, &earlier, err));
    /* The run is looked at twice; between them there is nothing to wait for but the time. */
    for (int64_t now_ms; (now_ms = dpt_now_ms()) < until_ms;)
        (void)poll(NULL, 0, (int)(until_ms - now_ms));
    DPT_TRY(dpt_hang_ask(args->server, earlier.run, args->timeout_ms, &later, err));
    dpt_hang_judge(&earlier, &later, &hang);
    dpt_hang_explain(&hang, &findings);
    if (prints_page(args)) {
        dpt_report_print_ranks(&hang, stdout);
        dpt_findings_print(&findings, stdout);
    }
    return write_json(args, dpt_report_json_hang(&hang), err);
}

static enum dpt_status look_at_log(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    struct dpt_run_log log;
    const double now_s = dpt_wall_seconds();
    DPT_TRY(dpt_run_log_read(args->log, &log, err));
    dpt_run_log_judge(&log, now_s, &findings);
    if (prints_page(args))
        dpt_findings_print(&findings, stdout);
    return write_json(args, dpt_run_log_json(&log, now_s), err);
}

static enum dpt_status run_doctor_command(const struct dpt_doctor_args *args, struct dpt_err *err)
{
    switch (args->command) {
    case DPT_DOCTOR_MACHINE:
        return examine_machine(args, err);
    case DPT_DOCTOR_LISTEN:
        return dpt_net_listen(args, err);
    case DPT_DOCTOR_PEERS:
    case DPT_DOCTOR_RUN:
        return measure_links(args, err);
    case DPT_DOCTOR_HANG:
        return watch_run(args, err);
    case DPT_DOCTOR_LOG:
        return look_at_log(args, err);
    }
    return dpt_fail(err, DPT_EINVAL, "no such command");
}

static int print_doctor_error(const struct dpt_err *err)
{
    const bool usage = err->status == DPT_EINVAL;
    (void)fprintf(stderr, "dpt-doctor: %s%s\n", err->text, usage ? "; see dpt-doctor --help" : "");
    return usage || err->status == DPT_ECONFIG ? EXIT_USAGE : EXIT_FOUND;
}

int main(int argc, char **argv)
{
    static struct dpt_doctor_args args;
    struct dpt_err err;
    enum dpt_status status = dpt_doctor_args_read(argc, argv, &args, &err);
    if (status == DPT_OK && args.help)
        dpt_doctor_args_help(stdout);
    else if (status == DPT_OK && args.version)
        (void)puts("dpt-doctor " DPT_VERSION);
    else if (status == DPT_OK)
        status = run_doctor_command(&args, &err);
    if (status == DPT_OK)
        status = dpt_stdout_flush(&err);
    if (status != DPT_OK)
        return print_doctor_error(&err);
    return findings.count[DPT_FINDING_FAIL] > 0 ? EXIT_FOUND : 0;
}
