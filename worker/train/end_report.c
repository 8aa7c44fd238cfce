/* Reports the error that ends a process to the agent, with the exit code. */
#include "worker/train/process.h"

#include "base/log.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/link/link.h"
#include "worker/train/step/step.h"

enum { EXIT_CODE_CONFIG = 2, EXIT_CODE_FAILED = 4, EXIT_CODE_EXPELLED = 75 };

/* The exit code of an error. EXIT_CODE_CONFIG is for errors in the config and in the files that it
 * names: there a retry does not help. */
static int exit_code_of(enum dpt_status status)
{
    switch (status) {
    case DPT_ECONFIG:
    case DPT_EINVAL:
    case DPT_ENOENT:
    case DPT_EIO: /* before the first step: a file that the config names */
    case DPT_ECORRUPT:
    case DPT_EVERSION:
    case DPT_EUNSUPPORTED:
        return EXIT_CODE_CONFIG;
    case DPT_EREFUSED: /* another run has taken the folder */
        return EXIT_CODE_EXPELLED;
    default:
        return EXIT_CODE_FAILED;
    }
}

/* Whether a retry may help: a mount, a device or memory that the first process of this local rank
 * had may be missing only for a time. */
static bool is_temporary(enum dpt_status status)
{
    return status == DPT_EDEVICE || status == DPT_EIO || status == DPT_ENOENT ||
           status == DPT_ENOMEM;
}

/* Publishes the last report. `fatal`: the agent reports the error as the run's error. Otherwise the
 * cause is on this machine, and the agent starts the process again. */
static void publish_end(struct dpt_rank *r, bool fatal, int exit_code, const char *text)
{
    dpt_log(r->link ? DPT_LOG_INFO : DPT_LOG_ERROR, "this process ends: %s", text);
    if (!r->link)
        return;
    struct dpt_report *report = dpt_link_edit(r->link);
    report->message.fatal = fatal;
    report->message.broken = !fatal;
    report->message.sound = fatal && r->stepping->reading_failed;
    report->message.exit_code = (uint32_t)exit_code;
    dpt_report_set_text(report, text);
    dpt_link_publish(r->link, true);
}

int rank_report_end(struct dpt_rank *r, enum dpt_status status, bool at_work, struct dpt_err *err)
{
    /* Without an agent there is nobody to report to. */
    if (status == DPT_EPEER)
        return EXIT_CODE_FAILED;
    const int exit_code = at_work && status != DPT_ECONFIG && status != DPT_EREFUSED
                              ? EXIT_CODE_FAILED
                              : exit_code_of(status);
    const bool own =
        at_work ? status == DPT_EDEVICE : r->options->start->spawn > 1 && is_temporary(status);
    rank_explain_memory(status, err);
    publish_end(r, !own, exit_code, err->text);
    return exit_code;
}
