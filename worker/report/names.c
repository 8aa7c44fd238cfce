/* Texts with numbers (names.h): a hash table with linear probing. */
#include "worker/report/names.h"

#include "base/array.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 256, NAMES_MAX = 1 << 24 };

/* The slot of the text, or the free slot that it gets. */
static size_t find_slot(const struct report_names *names, const char *text)
{
    size_t slot = (size_t)dpt_hash128(text, strlen(text)).lo & (names->n_slots - 1);
    while (names->slots[slot] != 0 && strcmp(names->text[names->slots[slot] - 1], text) != 0)
        slot = (slot + 1) & (names->n_slots - 1);
    return slot;
}

static bool grow_slots(struct report_names *names)
{
    const size_t n = names->n_slots ? 2 * names->n_slots : FIRST_SLOTS;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return false;
    free(names->slots);
    names->slots = slots;
    names->n_slots = n;
    for (size_t i = 0; i < names->n; i++)
        slots[find_slot(names, names->text[i])] = (uint32_t)i + 1;
    return true;
}

enum dpt_status report_names_add(struct report_names *names, const char *text, uint32_t *ret,
                                 struct dpt_err *err)
{
    if (2 * (names->n + 1) > names->n_slots && !grow_slots(names))
        return dpt_fail_nomem(err, "names of events");
    const size_t slot = find_slot(names, text);
    if (names->slots[slot] == 0) {
        if (names->n == NAMES_MAX)
            return dpt_fail(err, DPT_EOVERFLOW, "more than %d names of events", NAMES_MAX);
        char *copy = strdup(text);
        if (!copy ||
            !dpt_array_reserve(&names->text, &names->room, names->n + 1, sizeof *names->text)) {
            free(copy);
            return dpt_fail_nomem(err, "names of events");
        }
        names->text[names->n++] = copy;
        names->slots[slot] = (uint32_t)names->n;
    }
    *ret = names->slots[slot] - 1;
    return DPT_OK;
}

void report_names_free(struct report_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->text[i]);
    free(names->text);
    free(names->slots);
    *names = (struct report_names){0};
}
