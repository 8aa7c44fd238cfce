/* Trace files for tests (trace_view.h). */
#include "tests/worker/train/trace_view.h"

#include "base/fs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { TEXT_BYTES_MAX = 1 << 26 };

size_t trace_view_list(const char *name, const char *strategy, int rank,
                       char ret_paths[TRACE_FILES_MAX][PATH_MAX])
{
    char folder[PATH_MAX], **names = NULL;
    size_t n = 0;
    struct dpt_err err;
    (void)snprintf(folder, sizeof folder, "%s/traces/profile/%s/rank_%d", rig_dir(name), strategy,
                   rank);
    const enum dpt_status status = dpt_fs_list(folder, &names, &n, &err);
    if (status == DPT_ENOENT)
        return 0;
    assert_int_equal(status, DPT_OK);
    assert_true(n <= TRACE_FILES_MAX);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(dpt_fs_join(folder, names[i], ret_paths[i], PATH_MAX, &err), DPT_OK);
    dpt_fs_list_free(&names, n);
    return n;
}

json_t *trace_view_read(const char *path)
{
    char *text = malloc(TEXT_BYTES_MAX);
    assert_non_null(text);
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    const int n = gzread(file, text, TEXT_BYTES_MAX - 1);
    assert_true(n > 0);
    assert_int_equal(gzclose(file), Z_OK);
    json_error_t error;
    json_t *trace = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &error);
    if (!trace)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    free(text);
    return trace;
}

json_t *trace_view_only(const char *name, const char *strategy, int rank)
{
    static char paths[TRACE_FILES_MAX][PATH_MAX];
    assert_int_equal(trace_view_list(name, strategy, rank, paths), 1);
    json_t *trace = trace_view_read(paths[0]);
    const json_t *info = json_object_get(trace, "distributedInfo");
    assert_int_equal(json_integer_value(json_object_get(info, "rank")), rank);
    return trace;
}

size_t trace_view_count(const json_t *trace, const char *category, const char *name)
{
    const size_t prefix = strcspn(name, "*");
    const json_t *event;
    size_t i, n = 0;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *has = json_object_get(event, "cat");
        const char *called = json_string_value(json_object_get(event, "name")),
                   *of = has ? json_string_value(has) : "";
        const bool same =
            name[prefix] ? strncmp(called, name, prefix) == 0 : strcmp(called, name) == 0;
        n += same && (category ? strcmp(of, category) == 0 : has != NULL);
    }
    return n;
}
