/* The spill files (pending_lines.h) have the lines of steps that no server had confirmed when their
 * rank ended. When the run continues from a rescue, the log writer appends the lines that
 * metrics.jsonl lacks. */
#include "worker/train/log/rank_log.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNCONFIRMED_BYTES_MAX = 256 << 20 };

static bool is_unconfirmed(const char *name)
{
    static const char suffix[] = ".unconfirmed.jsonl";
    const size_t n = strlen(name), m = sizeof suffix - 1;
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Called with each file of unconfirmed lines. */
typedef void visit_unconfirmed(void *ctx, const char *path);

static void visit_folder(const char *folder, visit_unconfirmed *visit, void *ctx)
{
    char **names = NULL, path[PATH_MAX];
    size_t n_names = 0;
    if (dpt_fs_list(folder, &names, &n_names, NULL) != DPT_OK)
        return; /* this is a file of another program */
    for (size_t i = 0; i < n_names; i++)
        if (is_unconfirmed(names[i]) &&
            dpt_fs_join(folder, names[i], path, sizeof path, NULL) == DPT_OK)
            visit(ctx, path);
    dpt_fs_list_free(&names, n_names);
}

static void visit_all_nodes(struct dpt_rank *r, visit_unconfirmed *visit, void *ctx)
{
    const char *dir = r->config->log.dir;
    char **names = NULL, folder[PATH_MAX];
    size_t n_names = 0;
    struct dpt_err err;
    if (dpt_fs_list(dir, &names, &n_names, &err) != DPT_OK) {
        dpt_log(DPT_LOG_WARN,
                "lines that no server has confirmed are neither appended nor removed: %s",
                err.text);
        return;
    }
    for (size_t i = 0; i < n_names; i++)
        if (strncmp(names[i], "node-", 5) == 0 &&
            dpt_fs_join(dir, names[i], folder, sizeof folder, NULL) == DPT_OK)
            visit_folder(folder, visit, ctx);
    dpt_fs_list_free(&names, n_names);
}

/* Moves the lines of steps up to `step` to the front, and drops a last line without a newline.
 * Returns the length of these lines in bytes. */
static size_t keep_lines(char *text, size_t bytes, int64_t step)
{
    size_t kept = 0;
    for (char *line = text, *end; (end = memchr(line, '\n', bytes)) != NULL; line = end + 1) {
        const size_t n = (size_t)(end + 1 - line);
        bytes -= n;
        if (dpt_run_file_place_of(line, n - 1).step > step)
            continue;
        memmove(text + kept, line, n);
        kept += n;
    }
    return kept;
}

static void remove_later_lines(void *ctx, const char *path)
{
    const struct dpt_rank *r = ctx;
    char *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    enum dpt_status status = dpt_fs_read_file(path, UNCONFIRMED_BYTES_MAX, &text, &bytes, &err);
    const size_t kept = status == DPT_OK ? keep_lines(text, bytes, r->state.step) : 0;
    if (status == DPT_OK && kept == 0 && unlink(path) != 0)
        status = dpt_fail_errno(&err, errno, "remove '%s'", path);
    else if (status == DPT_OK && kept > 0 && kept < bytes)
        status = dpt_fs_write_file_atomic(path, text, kept, &err);
    free(text);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_WARN,
                "lines after step %lld, of a history that the run has left, are not removed: %s",
                (long long)r->state.step, err.text);
}

void rank_forget_unconfirmed(struct dpt_rank *r)
{
    visit_all_nodes(r, remove_later_lines, r);
}

/* ---- appending to metrics.jsonl ---- */

struct unconfirmed_line {
    struct dpt_run_file_place place;
    size_t order; /* its number in the order of reading */
    char *text;   /* owned; as in dpt_run_file_line */
    size_t bytes;
};

/* The lines that a writer appends to metrics.jsonl. */
struct completion {
    struct dpt_rank *r;
    struct dpt_run_file_place last; /* last line of the file, lines appended here included */
    struct unconfirmed_line *lines; /* owned */
    size_t n, room;
};

/* Keeps a line if it comes after the end of the file and is not beyond the step of the run. */
static enum dpt_status gather_line(struct completion *to, const char *line, size_t bytes,
                                   struct dpt_err *err)
{
    const struct dpt_run_file_place place = dpt_run_file_place_of(line, bytes);
    if (place.step < 0 || place.step > to->r->state.step ||
        bytes + 3 > DPT_RUN_FILE_LINE_BYTES_MAX || !dpt_run_file_is_after(&place, &to->last))
        return DPT_OK;
    char *text = dpt_array_reserve(&to->lines, &to->room, to->n + 1, sizeof *to->lines)
                     ? malloc(bytes + 3)
                     : NULL;
    if (!text)
        return dpt_fail_nomem(err, "lines that no server has confirmed");
    (void)snprintf(text, bytes + 3, "\n%.*s\n", (int)bytes, line);
    to->lines[to->n] = (struct unconfirmed_line){place, to->n, text, bytes + 2};
    to->n++;
    return DPT_OK;
}

/* Reads a file's lines. The file itself stays, because the next start may continue from an older
 * rescue. */
static void gather_lines(void *ctx, const char *path)
{
    struct completion *to = ctx;
    char *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    enum dpt_status status = dpt_fs_read_file(path, UNCONFIRMED_BYTES_MAX, &text, &bytes, &err);
    for (const char *line = text, *end;
         status == DPT_OK && (end = memchr(line, '\n', bytes)) != NULL; line = end + 1) {
        status = gather_line(to, line, (size_t)(end - line), &err);
        bytes -= (size_t)(end + 1 - line);
    }
    free(text);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_WARN, "metrics.jsonl may lack steps before the rescue: %s", err.text);
}

static int by_place(const void *a, const void *b)
{
    const struct unconfirmed_line *x = a, *y = b;
    if (dpt_run_file_is_after(&x->place, &y->place))
        return 1;
    if (dpt_run_file_is_after(&y->place, &x->place))
        return -1;
    /* Different times: the lines are of different histories, or of two ranks. */
    if (x->place.made_s != y->place.made_s)
        return x->place.made_s < y->place.made_s ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Sorts the lines, because lines of different nodes may overlap, and appends them. Of several lines
 * of one step the newest counts. */
static void append_gathered(struct completion *to)
{
    size_t n = 0;
    if (to->n > 0)
        qsort(to->lines, to->n, sizeof *to->lines, by_place);
    for (size_t i = 0; i < to->n; i++) {
        const struct unconfirmed_line *line = &to->lines[i];
        const struct dpt_run_file_line whole = {line->place, line->text, line->bytes};
        if (!dpt_run_file_is_after(&line->place, &to->last))
            continue;
        dpt_pending_add(to->r->log->lines, &whole, dpt_now_ms());
        (void)dpt_pending_flush(to->r->log->lines);
        to->last = line->place;
        n++;
    }
    if (n > 0)
        dpt_log(DPT_LOG_INFO,
                "metrics.jsonl is completed with %zu lines that no server had confirmed", n);
}

/* The rescued world made its lines without a server. The steps of any other world have the same
 * values, so every line that the file lacks may be appended. */
void rank_append_unconfirmed(struct dpt_rank *r, const struct dpt_run_file_place *last)
{
    struct completion to = {.r = r, .last = *last};
    visit_all_nodes(r, gather_lines, &to);
    append_gathered(&to);
    for (size_t i = 0; i < to.n; i++)
        free(to.lines[i].text);
    free(to.lines);
}
