/* The chains of records, which their checksums make (verify.c). */
#include "rendezvous/store/internal.h"

#include <stdlib.h>

void store_chains_fini(struct chains *chains)
{
    for (size_t i = 0; i < chains->n; i++)
        free(chains->list[i].plans);
    free(chains->list);
    *chains = (struct chains){0};
}

struct chain *store_chain_of(struct chains *chains, int64_t run)
{
    for (size_t i = chains->n; i-- > 0;) /* the newest run speaks most */
        if (chains->list[i].run == run)
            return &chains->list[i];
    return NULL;
}

static struct chain *add_chain(struct chains *chains, int64_t run)
{
    if (chains->n == chains->max) {
        const size_t max = chains->max == 0 ? 8 : 2 * chains->max;
        struct chain *bigger = realloc(chains->list, max * sizeof *bigger);
        if (bigger == NULL)
            return NULL;
        chains->list = bigger;
        chains->max = max;
    }
    chains->list[chains->n] = (struct chain){.run = run};
    return &chains->list[chains->n++];
}

struct chain *store_chain_for(struct chains *chains, enum dpt_rdzv_record_kind kind, int64_t run)
{
    const int64_t of = kind == DPT_RDZV_RECORD_FORGET ? 0 : run;
    struct chain *chain = store_chain_of(chains, of);
    const bool begins = of == 0 || kind == DPT_RDZV_RECORD_RUN;
    return chain == NULL && begins ? add_chain(chains, of) : chain;
}

void store_chain_end(struct chains *chains, int64_t run)
{
    struct chain *chain = store_chain_of(chains, run);
    if (chain == NULL)
        return;
    free(chain->plans);
    *chain = chains->list[--chains->n];
}

bool store_chains_copy(const struct chains *chains, struct chains *ret)
{
    struct chains copy = {0};
    for (size_t i = 0; i < chains->n; i++) {
        struct chain *chain = add_chain(&copy, chains->list[i].run);
        if (chain == NULL) {
            store_chains_fini(&copy);
            return false;
        }
        chain->newest = chains->list[i].newest;
        chain->sum = chains->list[i].sum;
    }
    *ret = copy;
    return true;
}

const struct chain *store_newest_of(const struct chains *chains)
{
    static const struct chain none;
    const struct chain *newest = &none;
    for (size_t i = 0; i < chains->n; i++)
        if (chains->list[i].newest > newest->newest)
            newest = &chains->list[i];
    return newest;
}
