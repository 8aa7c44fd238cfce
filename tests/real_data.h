/* Real data for tests: a folder with OpenAI's vocab.bpe and encoder.json and tinyshakespeare.txt.
 * DPT_TEST_DATA names it (default: shared/data beside the checkout). A test without its file skips
 * and prints a line. */
#ifndef DPT_TESTS_REAL_DATA_H
#define DPT_TESTS_REAL_DATA_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef DPT_TEST_DATA_DEFAULT
#define DPT_TEST_DATA_DEFAULT "../shared/data"
#endif

/* Gives the path of `name` in that folder. If the file cannot be read, prints a line on stderr and
 * returns false. */
static inline bool test_data_path(char *ret, size_t ret_bytes, const char *name)
{
    const char *folder = getenv("DPT_TEST_DATA");
    if (folder == NULL || folder[0] == '\0')
        folder = DPT_TEST_DATA_DEFAULT;
    int length = snprintf(ret, ret_bytes, "%s/%s", folder, name);
    if (length > 0 && (size_t)length < ret_bytes && access(ret, R_OK) == 0)
        return true;
    (void)fprintf(stderr, "skipped: no %s in '%s' (DPT_TEST_DATA)\n", name, folder);
    return false;
}

#endif
