/* Fuzz target: any texts as the command line of a rank process. What is taken makes a command line
 * that reads back to the same. */
#include "tests/fuzz/fuzz.h"
#include "worker/agent/rank_protocol.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 4096, ARGS_MAX = 64 };

/* Arguments are lines. */
static int split(char *text, char *ret_argv[ARGS_MAX + 1])
{
    int argc = 0;
    for (char *line = text; line != NULL && argc < ARGS_MAX; argc++) {
        ret_argv[argc] = line;
        line = strchr(line, '\n');
        if (line != NULL)
            *line++ = '\0';
    }
    ret_argv[argc] = NULL;
    return argc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dpt_rank_args first, second;
    struct dpt_rank_start start = {0}, again = {0};
    struct dpt_err err = {.status = DPT_OK};
    char *argv[ARGS_MAX + 1];
    if (bytes >= TEXT_BYTES)
        return 0;
    char *text = malloc(bytes + 1); /* exact, so that a byte too far is seen */
    DPT_ASSERT(text != NULL);
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    const int argc = split(text, argv);
    if (dpt_rank_start_decode(argc, argv, &start, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EINVAL && err.text[0] != '\0');
        free(text);
        return 0;
    }
    int n = 0;
    dpt_rank_start_encode(&start, "dpt-worker", &first);
    while (first.argv[n] != NULL)
        n++;
    DPT_ASSERT(dpt_rank_start_decode(n, first.argv, &again, &err) == DPT_OK);
    dpt_rank_start_encode(&again, "dpt-worker", &second);
    for (int i = 0; i < n; i++)
        DPT_ASSERT(strcmp(first.argv[i], second.argv[i]) == 0);
    DPT_ASSERT(second.argv[n] == NULL);
    free(text);
    return 0;
}
