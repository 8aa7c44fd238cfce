/* Temporary folders of tests: under $TMPDIR, else /tmp. Whoever makes one removes it in a teardown,
 * so that a failed test leaves none behind. */
#ifndef DPT_TESTS_TMP_H
#define DPT_TESTS_TMP_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A new folder dpt-NAME-XXXXXX, its path in `ret`. False, with `ret` empty and the reason on
 * stderr: it cannot be made, or its path is too long. */
static inline bool test_make_dir(char *ret, size_t ret_bytes, const char *name)
{
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] == '\0')
        base = "/tmp";
    int length = snprintf(ret, ret_bytes, "%s/dpt-%s-XXXXXX", base, name);
    bool fits = length > 0 && (size_t)length < ret_bytes;
    if (fits && mkdtemp(ret) != NULL)
        return true;
    (void)fprintf(stderr, "no temporary folder dpt-%s in %s%s\n", name, base,
                  fits ? "" : ": the path is too long");
    ret[0] = '\0';
    return false;
}

#endif
