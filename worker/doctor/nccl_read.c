/* Reads and judges NCCL's log (nccl_read.h). */
#include "worker/doctor/nccl_read.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, LINES_MAX = 10000000 };

static const char section[] = "nccl";

/* Opens a regular file. */
static enum dpt_status open_log(const char *path, FILE **ret, struct dpt_err *err)
{
    struct stat st;
    /* O_NONBLOCK: without it, open() of a named pipe that has no writer would wait. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%.200s'", path);
    const bool is_regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *file = is_regular ? fdopen(fd, "r") : NULL;
    if (file) {
        *ret = file;
        return DPT_OK;
    }
    (void)close(fd); /* nothing was written */
    return is_regular ? dpt_fail_nomem(err, "read '%.200s'", path)
                      : dpt_fail(err, DPT_EIO, "'%.200s' is not a regular file", path);
}

enum dpt_status dpt_nccl_log_read(const char *path, struct dpt_nccl_log *ret, struct dpt_err *err)
{
    static char line[LINE_BYTES];
    FILE *file = NULL;
    memset(ret, 0, sizeof *ret);
    DPT_TRY(open_log(path, &file, err));
    bool continues = false; /* the rest of a line that was cut */
    for (int i = 0; i < LINES_MAX && fgets(line, sizeof line, file); i++) {
        const size_t length = strcspn(line, "\r\n");
        const bool whole = line[length] != '\0';
        line[length] = '\0';
        if (!continues)
            dpt_nccl_log_add(ret, line);
        continues = !whole;
    }
    dpt_nccl_log_end(ret);
    const bool failed = ferror(file) != 0;
    const int error = errno;
    (void)fclose(file);
    if (failed)
        return dpt_fail_errno(err, error, "read '%.200s'", path);
    if (ret->lines == 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%.200s' has no line of NCCL: start the run with NCCL_DEBUG=INFO in the "
                        "environment, and give its output (log.dir/node-ID/rank-R.log)",
                        path);
    return DPT_OK;
}

static void judge_transports(const struct dpt_nccl_log *log, struct dpt_findings *findings)
{
    static const struct {
        const char *prefix, *text;
        enum dpt_finding_level level;
    } kinds[] = {{"P2P", "GPU to GPU", DPT_FINDING_OK},
                 {"SHM", "through shared memory of the host: no peer access", DPT_FINDING_WARN},
                 {"NET/IB", "between machines by RDMA", DPT_FINDING_OK},
                 {"NET/Socket", "between machines by TCP", DPT_FINDING_WARN},
                 {"COLLNET", "by a network that adds", DPT_FINDING_OK},
                 {"NVLS", "by NVLink switches that add", DPT_FINDING_OK}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const int n = dpt_nccl_log_edges(log, kinds[i].prefix);
        if (n > 0)
            (void)dpt_findings_add(findings, kinds[i].level, section, kinds[i].prefix,
                                   "%d connection%s %s", n, n == 1 ? "" : "s", kinds[i].text);
    }
    if (log->n_edges == 0)
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "transports",
                               "the log names none: NCCL did not connect ranks, or "
                               "NCCL_DEBUG_SUBSYS leaves INIT and GRAPH out");
}

/* A remedy for a log that does not say what NCCL chose. */
static void judge_tuning(const struct dpt_nccl_log *log, struct dpt_findings *findings)
{
    if (log->tuning.n_choices > 0)
        return;
    struct dpt_finding *line =
        dpt_findings_add(findings, DPT_FINDING_INFO, section, "algorithms",
                         "the log does not name what NCCL chose by size%s",
                         log->tuning.n_tables > 0 ? ", only its table of times" : "");
    dpt_finding_set_remedy(line,
                           "NCCL 2.20 and newer: NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,TUNING, and "
                           "the log of rank 0");
}

void dpt_nccl_log_judge(const struct dpt_nccl_log *log, struct dpt_findings *findings)
{
    judge_transports(log, findings);
    judge_tuning(log, findings);
    for (int i = 0; i < log->n_reasons; i++) {
        const struct dpt_nccl_reason *reason = &log->reason[i];
        struct dpt_finding *line =
            dpt_findings_add(findings, reason->bad ? DPT_FINDING_WARN : DPT_FINDING_INFO, section,
                             "reason", "%s (%d line%s: %.120s)", reason->text, reason->count,
                             reason->count == 1 ? "" : "s", reason->line);
        if (reason->remedy && reason->remedy[0] != '\0')
            dpt_finding_set_remedy(line, "%s", reason->remedy);
    }
}
