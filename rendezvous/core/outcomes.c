/* Outcomes of steps, each kept once (outcomes.h). */
#include "rendezvous/core/outcomes.h"

#include <stdlib.h>
#include <string.h>

struct outcome *dpt_outcomes_keep(struct outcomes *outcomes, const uint8_t *bytes, size_t n_bytes,
                                  bool *ret_no_memory)
{
    struct outcome *unused = NULL;
    for (size_t i = 0; i < OUTCOMES_MAX; i++) {
        struct outcome *each = &outcomes->list[i];
        if (each->uses == 0) {
            unused = each;
        } else if (each->n_bytes == n_bytes && memcmp(each->bytes, bytes, n_bytes) == 0) {
            each->uses++;
            return each;
        }
    }
    if (unused == NULL)
        return NULL;
    uint8_t *copy = malloc(n_bytes);
    if (copy == NULL) {
        *ret_no_memory = true;
        return NULL;
    }
    memcpy(copy, bytes, n_bytes);
    *unused = (struct outcome){.uses = 1, .bytes = copy, .n_bytes = n_bytes};
    return unused;
}

void dpt_outcomes_drop(struct outcome **outcome)
{
    if (*outcome != NULL && --(*outcome)->uses == 0) {
        free((*outcome)->bytes);
        **outcome = (struct outcome){0};
    }
    *outcome = NULL;
}
