/* The error that ends a process: whose fault it is, and what its agent is told. */
#include "worker/train/process.h"

#include "base/log.h"
#include "worker/train/device/device.h"
#include "worker/train/link/link.h"
#include "worker/train/step/step.h"

enum { EXIT_CODE_CONFIG = 2, EXIT_CODE_FAILED = 4, EXIT_CODE_EXPELLED = 75 };

/* Errors in the config and in the files that it names: a retry does not help. */
static int exit_code_of(enum dpt_status status)
{
    switch (status) {
    case DPT_ECONFIG:
    case DPT_EINVAL:
    case DPT_ENOENT:
    case DPT_EIO: /* before the first step: a file that was named and cannot be read */
    case DPT_ECORRUPT:
    case DPT_EVERSION:
    case DPT_EUNSUPPORTED:
        return EXIT_CODE_CONFIG;
    case DPT_EREFUSED: /* the folder is another run's now */
        return EXIT_CODE_EXPELLED;
    default:
        return EXIT_CODE_FAILED;
    }
}

/* The first process of a local rank had it, and a later one may lack it for a time: a mount, a
 * device, memory. */
static bool may_come_back(enum dpt_status status)
{
    return status == DPT_EDEVICE || status == DPT_EIO || status == DPT_ENOENT ||
           status == DPT_ENOMEM;
}

/* The last report. The agent makes it the error of the run (`fatal`) or, if the fault is this
 * machine's, the error of this process, which it starts again. */
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
    if (status == DPT_EPEER) /* the agent is gone */
        return EXIT_CODE_FAILED;
    const int exit_code = at_work && status != DPT_ECONFIG && status != DPT_EREFUSED
                              ? EXIT_CODE_FAILED
                              : exit_code_of(status);
    const bool own =
        at_work ? status == DPT_EDEVICE : r->options->start->spawn > 1 && may_come_back(status);
    rank_explain_memory(status, err);
    publish_end(r, !own, exit_code, err->text);
    return exit_code;
}
