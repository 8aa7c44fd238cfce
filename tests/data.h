/* Real data for tests: the folder of OpenAI's vocab.bpe and encoder.json and tinyshakespeare.txt,
 * named by DPT_TEST_DATA (default: shared/data beside the checkout). What needs it is skipped, and
 * says so, where it is not there. */
#ifndef DPT_TESTS_DATA_H
#define DPT_TESTS_DATA_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef DPT_TEST_DATA_DEFAULT
#define DPT_TEST_DATA_DEFAULT "../shared/data"
#endif

/* The path of `name` in that folder; false, with a line on stderr, when there is no such file. */
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
