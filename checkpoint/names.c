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

void dpt_name_step(int64_t step, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "step-%08lld", (long long)step);
}

void dpt_name_rescue(int64_t step, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, RESCUE "step-%08lld", (long long)step);
}

bool dpt_name_parse_rescue(const char *name, int64_t *ret_step)
{
    const size_t prefix = sizeof RESCUE - 1;
    return strncmp(name, RESCUE, prefix) == 0 && dpt_name_parse_step(name + prefix, ret_step);
}

/* Digits at `*at` as a number that fits int64_t; moves *at behind them. */
static bool parse_digits(const char **at, uint64_t *ret)
{
    uint64_t value = 0;
    int n = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++, n++) {
        if (n >= 18)
            return false;
        value = value * 10 + (uint64_t)(**at - '0');
    }
    *ret = value;
    return n > 0;
}

bool dpt_name_parse_step(const char *name, int64_t *ret_step)
{
    if (strncmp(name, "step-", 5) != 0)
        return false;
    const char *at = name + 5;
    uint64_t step;
    char exact[DPT_CHECKPOINT_NAME_BYTES];
    if (!parse_digits(&at, &step) || *at != '\0')
        return false;
    dpt_name_step((int64_t)step, exact);
    if (strcmp(name, exact) != 0)
        return false;
    *ret_step = (int64_t)step;
    return true;
}

enum dpt_status dpt_name_temporary(int64_t step, uint64_t generation, const char *attempt,
                                   char ret[DPT_CHECKPOINT_NAME_BYTES], struct dpt_err *err)
{
    size_t n = attempt ? strlen(attempt) : 0;
    if (n == 0 || n > DPT_CHECKPOINT_ATTEMPT_BYTES_MAX ||
        strspn(attempt, "0123456789abcdefghijklmnopqrstuvwxyz-") != n)
        return dpt_fail(err, DPT_EINVAL, "checkpoint attempt '%.80s': 1 to %d of [0-9a-z-]",
                        attempt ? attempt : "", DPT_CHECKPOINT_ATTEMPT_BYTES_MAX);
    (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, ".tmp-step-%08lld-g%llu-%s", (long long)step,
                   (unsigned long long)generation, attempt);
    return DPT_OK;
}

/* Where the attempt begins in a temporary folder's name; NULL: it is another name. */
static const char *parse_temporary(const char *name, int64_t *ret_step, uint64_t *ret_generation)
{
    if (strncmp(name, ".tmp-step-", 10) != 0)
        return NULL;
    const char *at = name + 10;
    uint64_t step, generation;
    if (!parse_digits(&at, &step) || strncmp(at, "-g", 2) != 0)
        return NULL;
    at += 2;
    if (!parse_digits(&at, &generation) || *at != '-')
        return NULL;
    *ret_step = (int64_t)step;
    *ret_generation = generation;
    return at + 1;
}

bool dpt_name_parse_temporary(const char *name, int64_t *ret_step, uint64_t *ret_generation)
{
    return parse_temporary(name, ret_step, ret_generation) != NULL;
}

bool dpt_name_parse_rescue_attempt(const char *name, int64_t *ret_step)
{
    int64_t step;
    uint64_t generation;
    const char *attempt = parse_temporary(name, &step, &generation);
    if (!attempt ||
        strncmp(attempt, DPT_NAME_RESCUE_ATTEMPT, sizeof DPT_NAME_RESCUE_ATTEMPT - 1) != 0)
        return false;
    *ret_step = step;
    return true;
}

bool dpt_name_is_listable(const char *name)
{
    if (strncmp(name, DPT_NAME_OPTIMIZER "/", sizeof DPT_NAME_OPTIMIZER) == 0)
        name += sizeof DPT_NAME_OPTIMIZER;
    size_t n = strlen(name);
    return n > 0 && n < DPT_CHECKPOINT_NAME_BYTES && name[0] != '.' &&
           strspn(name, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") == n;
}
