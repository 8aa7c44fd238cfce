/* Names inside a checkpoint folder (names.h). */
#include "checkpoint/names.h"

#include <stdio.h>
#include <string.h>

#define RESCUE "rescue-"

static const char *const kind_prefix[DPT_KIND_COUNT] = {"model-", DPT_NAME_OPTIMIZER "/m-",
                                                        DPT_NAME_OPTIMIZER "/v-"};

void dpt_name_tensors(enum dpt_kind kind, int i, int n, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    DPT_ASSERT((unsigned)kind < DPT_KIND_COUNT);
    (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "%s%05d-of-%05d.safetensors", kind_prefix[kind],
                   i + 1, n);
}

bool dpt_name_parse_tensors(const char *name, enum dpt_kind *ret_kind, int *ret_i, int *ret_n)
{
    if (strcmp(name, DPT_NAME_ADAPTERS) == 0) {
        *ret_kind = DPT_KIND_PARAM;
        *ret_i = 0;
        *ret_n = 1;
        return true;
    }
    for (int kind = 0; kind < DPT_KIND_COUNT; kind++) {
        size_t prefix = strlen(kind_prefix[kind]);
        int i, n;
        if (strncmp(name, kind_prefix[kind], prefix) != 0 ||
            sscanf(name + prefix, "%5d-of-%5d", &i, &n) != 2 || i < 1 || i > n)
            continue;
        char exact[DPT_CHECKPOINT_NAME_BYTES];
        dpt_name_tensors((enum dpt_kind)kind, i - 1, n, exact);
        if (strcmp(name, exact) != 0)
            continue;
        *ret_kind = (enum dpt_kind)kind;
        *ret_i = i - 1;
        *ret_n = n;
        return true;
    }
    return false;
}

void dpt_name_part(int writer, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    if (writer < 0)
        (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "part-common.json");
    else
        (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "part-%05d.json", writer);
}

void dpt_name_step(int64_t step, bool rescue, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "%sstep-%08lld", rescue ? RESCUE : "",
                   (long long)step);
}

/* sscanf also accepts signs and blanks, so the parsed number must give the same name when
 * printed. */
bool dpt_name_parse_step(const char *name, int64_t *ret_step)
{
    long long step;
    char exact[DPT_CHECKPOINT_NAME_BYTES];
    if (sscanf(name, "step-%18lld", &step) != 1 || step < 0)
        return false;
    dpt_name_step(step, false, exact);
    if (strcmp(name, exact) != 0)
        return false;
    *ret_step = step;
    return true;
}

bool dpt_name_parse_rescue(const char *name, int64_t *ret_step)
{
    const size_t prefix = sizeof RESCUE - 1;
    return strncmp(name, RESCUE, prefix) == 0 && dpt_name_parse_step(name + prefix, ret_step);
}

/* Returns the length of the name without the attempt. */
static size_t print_temporary(int64_t step, uint64_t generation, const char *attempt,
                              char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    const int n = snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, ".tmp-step-%08lld-g%llu-%s",
                           (long long)step, (unsigned long long)generation, attempt);
    return (size_t)n - strlen(attempt);
}

enum dpt_status dpt_name_temporary(int64_t step, uint64_t generation, const char *attempt,
                                   char ret[DPT_CHECKPOINT_NAME_BYTES], struct dpt_err *err)
{
    size_t n = attempt ? strlen(attempt) : 0;
    if (n == 0 || n > DPT_CHECKPOINT_ATTEMPT_BYTES_MAX ||
        strspn(attempt, "0123456789abcdefghijklmnopqrstuvwxyz-") != n)
        return dpt_fail(err, DPT_EINVAL, "checkpoint attempt '%.80s': 1 to %d of [0-9a-z-]",
                        attempt ? attempt : "", DPT_CHECKPOINT_ATTEMPT_BYTES_MAX);
    (void)print_temporary(step, generation, attempt, ret);
    return DPT_OK;
}

const char *dpt_name_parse_temporary(const char *name, int64_t *ret_step, uint64_t *ret_generation)
{
    long long step;
    unsigned long long generation;
    char exact[DPT_CHECKPOINT_NAME_BYTES];
    if (sscanf(name, ".tmp-step-%18lld-g%18llu-", &step, &generation) != 2 || step < 0)
        return NULL;
    const size_t n = print_temporary(step, generation, "", exact);
    if (strncmp(name, exact, n) != 0)
        return NULL;
    *ret_step = step;
    *ret_generation = generation;
    return name + n;
}

bool dpt_name_is_rescue_attempt(const char *attempt)
{
    return strncmp(attempt, DPT_NAME_RESCUE_ATTEMPT, sizeof DPT_NAME_RESCUE_ATTEMPT - 1) == 0;
}

bool dpt_name_is_listable(const char *name)
{
    if (strncmp(name, DPT_NAME_OPTIMIZER "/", sizeof DPT_NAME_OPTIMIZER) == 0)
        name += sizeof DPT_NAME_OPTIMIZER;
    size_t n = strlen(name);
    return n > 0 && n < DPT_CHECKPOINT_NAME_BYTES && name[0] != '.' &&
           strspn(name, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") == n;
}
