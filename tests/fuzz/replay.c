/* Runs a fuzz target over the files of the folder given: its committed corpus, as an ordinary test.
 */
#include "base/fs.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

enum { INPUT_BYTES_MAX = 1 << 20 };

static enum dpt_status replay(const char *folder, const char *name, struct dpt_err *err)
{
    char path[4096];
    char *data;
    size_t bytes;
    DPT_TRY(dpt_fs_join(folder, name, path, sizeof path, err));
    DPT_TRY(dpt_fs_read_file(path, INPUT_BYTES_MAX, &data, &bytes, err));
    (void)LLVMFuzzerTestOneInput((const uint8_t *)data, bytes);
    free(data);
    return DPT_OK;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    char **names;
    size_t n;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    enum dpt_status status = dpt_fs_list(argv[1], &names, &n, &err);
    if (status == DPT_OK && n == 0)
        status = dpt_fail(&err, DPT_ENOENT, "no inputs in '%s'", argv[1]);
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        status = replay(argv[1], names[i], &err);
    if (status != DPT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    (void)printf("%zu inputs\n", n);
    dpt_fs_list_free(&names, n);
    return 0;
}
