/* Finds trace files (found.h). */
#include "worker/report/found.h"

#include "base/array.h"
#include "base/fs.h"
#include "worker/report/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 8, FILES_MAX = 1 << 17 };

static bool ends_with(const char *text, const char *ending)
{
    const size_t n = strlen(text), k = strlen(ending);
    return n >= k && strcmp(text + n - k, ending) == 0;
}

static bool is_trace_name(const char *name)
{
    return ends_with(name, ".trace.json") || ends_with(name, ".trace.json.gz");
}

/* The folder before "/rank_R/", by which dpt and others name the strategy. */
static void strategy_of_path(const char *path, char *ret, size_t bytes)
{
    const char *end = NULL, *begin;
    for (const char *at = strstr(path, "/rank_"); at; at = strstr(at + 1, "/rank_"))
        end = at;
    (void)snprintf(ret, bytes, "unknown");
    if (!end)
        return;
    begin = end;
    while (begin > path && begin[-1] != '/')
        begin--;
    if (end > begin && *begin != '.')
        (void)snprintf(ret, bytes, "%.*s", (int)(end - begin), begin);
}

/* The number of at least ten digits between dots in "worker_0.1732.pt.trace.json", in ns. */
static int64_t time_of_name(const char *path)
{
    enum { DIGITS_MIN = 10, DIGITS_NS = 19 };
    const char *name = strrchr(path, '/');
    for (const char *dot = strchr(name ? name : path, '.'); dot; dot = strchr(dot + 1, '.')) {
        const size_t digits = strspn(dot + 1, "0123456789");
        if (digits < DIGITS_MIN || digits > DIGITS_NS || dot[1 + digits] != '.')
            continue;
        int64_t ns = (int64_t)strtoll(dot + 1, NULL, 10);
        for (size_t d = digits; d < DIGITS_NS; d++)
            ns = ns > INT64_MAX / 10 ? ns : ns * 10;
        return ns;
    }
    return -1;
}

/* The time in the file's name; else of its last change. */
static enum dpt_status time_of_file(const char *path, int64_t *ret_ns, struct dpt_err *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return dpt_fail_errno(err, errno, "read '%s'", path);
    const int64_t named_ns = time_of_name(path);
    *ret_ns =
        named_ns >= 0 ? named_ns : (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    return DPT_OK;
}

enum dpt_status report_find_file(const char *path, struct report_found *found, struct dpt_err *err)
{
    struct report_file file = {.rank = 0};
    DPT_TRY(report_head_read(path, &file.head, err));
    if (found->n_files == FILES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d trace files", FILES_MAX);
    DPT_TRY(time_of_file(path, &file.time_ns, err));
    file.rank = file.head.rank != REPORT_UNKNOWN ? file.head.rank
                                                 : report_rank_of_path(path, (int)found->n_files);
    if (file.head.strategy[0])
        (void)snprintf(file.strategy, sizeof file.strategy, "%s", file.head.strategy);
    else
        strategy_of_path(path, file.strategy, sizeof file.strategy);
    /* The strategy names a folder of the reports. */
    if (strchr(file.strategy, '/') || file.strategy[0] == '.')
        return dpt_fail(err, DPT_EPROTO, "'%s' is not a trace of dpt: its strategy is '%s'", path,
                        file.strategy);
    file.path = strdup(path);
    if (!file.path || !dpt_array_reserve(&found->files, &found->files_room, found->n_files + 1,
                                         sizeof *found->files)) {
        free(file.path);
        return dpt_fail_nomem(err, "list of traces");
    }
    found->files[found->n_files++] = file;
    return DPT_OK;
}

static enum dpt_status add_damaged(const char *path, struct report_found *found,
                                   const struct dpt_err *why, struct dpt_err *err)
{
    struct report_damaged file = {.rank = report_rank_of_path(path, REPORT_UNKNOWN), .err = *why};
    DPT_TRY(time_of_file(path, &file.time_ns, err));
    strategy_of_path(path, file.strategy, sizeof file.strategy);
    if (found->n_damaged == FILES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d damaged files", FILES_MAX);
    if (!dpt_array_reserve(&found->damaged, &found->damaged_room, found->n_damaged + 1,
                           sizeof *found->damaged))
        return dpt_fail_nomem(err, "list of traces");
    found->damaged[found->n_damaged++] = file;
    return DPT_OK;
}

static enum dpt_status find_in_folder(const char *dir, int depth, struct report_found *found,
                                      struct dpt_err *err);

static enum dpt_status find_at(const char *dir, const char *name, int depth,
                               struct report_found *found, struct dpt_err *err)
{
    char path[PATH_MAX];
    struct stat info;
    DPT_TRY(dpt_fs_join(dir, name, path, sizeof path, err));
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? DPT_OK /* removed meanwhile */
                               : dpt_fail_errno(err, errno, "read '%s'", path);
    if (S_ISDIR(info.st_mode))
        return depth < DEPTH_MAX ? find_in_folder(path, depth + 1, found, err) : DPT_OK;
    if (!is_trace_name(name))
        return DPT_OK;
    struct dpt_err why;
    const enum dpt_status status = report_find_file(path, found, &why);
    if (status == DPT_EPROTO || status == DPT_ECORRUPT)
        return add_damaged(path, found, &why, err);
    if (status != DPT_OK)
        *err = why;
    return status;
}

/* Follows no links to folders. At most DEPTH_MAX folders deep. */
// NOLINTNEXTLINE(misc-no-recursion)
static enum dpt_status find_in_folder(const char *dir, int depth, struct report_found *found,
                                      struct dpt_err *err)
{
    char **names;
    size_t n;
    DPT_TRY(dpt_fs_list(dir, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; i < n && status == DPT_OK; i++)
        status = find_at(dir, names[i], depth, found, err);
    dpt_fs_list_free(&names, n);
    return status;
}

enum dpt_status report_find_below(const char *dir, struct report_found *found, struct dpt_err *err)
{
    return dpt_fs_exists(dir) ? find_in_folder(dir, 0, found, err) : DPT_OK;
}

void report_found_free(struct report_found *found)
{
    for (size_t i = 0; i < found->n_files; i++)
        free(found->files[i].path);
    for (size_t i = 0; i < found->n_groups; i++) {
        free(found->groups[i].paths);
        free(found->groups[i].ranks);
    }
    free(found->files);
    free(found->damaged);
    free(found->groups);
    *found = (struct report_found){0};
}
