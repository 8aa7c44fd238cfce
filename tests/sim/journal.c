/* The server's journal in the simulation, and crashes between a record and the messages of its
 * step.
 *
 * Every record of every server is also applied to a second machine that makes no step: after each
 * step of the server both must have the same durable state. So durable state changes by records
 * alone. */
#include "tests/sim/sim.h"

#include "tests/rendezvous/core/kept_view.h"

#include <stdlib.h>
#include <string.h>

struct disk {
    struct kept_records *records;
    struct dpt_rdzv *replica; /* has the durable state of `records`, and makes no step */
};

static struct dpt_rdzv *new_core(struct sim *sim, uint64_t epoch)
{
    struct dpt_rdzv_options options = {.epoch = epoch, .now_ms = sim->now_ms};
    struct dpt_rdzv *core = NULL;
    struct dpt_err err;
    if (dpt_rdzv_create(&options, &core, &err) != DPT_OK)
        sim_fail(sim, "%s", err.text);
    return core;
}

void disk_wipe(struct sim *sim)
{
    disk_destroy(&sim->disk);
    sim->disk = calloc(1, sizeof *sim->disk);
    DPT_ASSERT(sim->disk != NULL);
    sim->disk->records = kept_records_create();
    sim->disk->replica = new_core(sim, 1);
}

void disk_destroy(struct disk **disk)
{
    if (*disk == NULL)
        return;
    kept_records_destroy(&(*disk)->records);
    dpt_rdzv_destroy(&(*disk)->replica);
    free(*disk);
    *disk = NULL;
}

/* The server gets a copy that lacks the last records: what it lacks, the nodes know. */
static void take_older_copy(struct sim *sim)
{
    struct rng rng = {sim->epoch}; /* its own: moves no other draw */
    const size_t n = kept_records_count(sim->disk->records);
    const bool is_close = rng_chance(&rng, 700);
    const size_t lacks = (size_t)rng_range(&rng, 0, (int64_t)(is_close && n > 12 ? 12 : n));
    kept_records_cut(sim->disk->records, n - lacks);
    dpt_rdzv_destroy(&sim->disk->replica);
    sim->disk->replica = new_core(sim, 1);
    const char *broken = kept_records_restore(sim->disk->records, sim->disk->replica);
    if (broken != NULL)
        sim_fail(sim, "the older copy is refused: %s", broken);
    sim->older_copies += lacks > 0;
    sim->server_hurt = true;
    sim_say(sim, "the journal is a copy of %zu of %zu records", n - lacks, n);
}

void disk_restore(struct sim *sim)
{
    if (sim->has_older_copies)
        take_older_copy(sim);
    const struct kept_records *records = sim->disk->records;
    const char *broken = kept_records_restore(records, sim->core);
    if (broken == NULL)
        broken = kept_difference(sim->core, sim->disk->replica);
    for (size_t i = 0; broken == NULL && i < kept_records_count(records); i++)
        if (kept_record_counts(records, i))
            watch_restore(sim->watch, kept_record_at(records, i));
    if (broken != NULL)
        sim_fail(sim, "the journal gives another state back: %s", broken);
}

static void persist(struct sim *sim, const struct dpt_rdzv_output *output)
{
    struct dpt_err err;
    for (size_t i = 0; i < output->n_records; i++) {
        kept_records_add(sim->disk->records, &output->records[i]);
        if (dpt_rdzv_restore(sim->disk->replica, &output->records[i], &err) != DPT_OK)
            sim_fail(sim, "a record cannot be applied again: %s", err.text);
    }
    sim->records += output->n_records;
}

void disk_crash(struct sim *sim)
{
    server_crash(sim);
    sim->crashes_at_records++;
    sim->server_hit = sim->server_hurt = true;
    const int64_t away_ms = rng_chance(&sim->nonces, 500) ? rng_range(&sim->nonces, 1, 300)
                                                          : rng_range(&sim->nonces, 300, 8000);
    sim_say(sim, "the server crashes at record %llu for %lld ms", (unsigned long long)sim->records,
            (long long)away_ms);
    sim_push(sim, (struct event){
                      .at_ms = sim->now_ms + away_ms, .kind = EV_SERVER_START, .machine = -1});
}

/* True: the crash that is due comes in this step, which has records. */
static bool is_crash_due(struct sim *sim, const struct dpt_rdzv_output *output)
{
    const bool counted = sim->crash_at_record > sim->records &&
                         sim->crash_at_record <= sim->records + output->n_records;
    if (output->n_records == 0 || !(sim->crash_is_armed || counted))
        return false;
    sim->crash_is_armed = false;
    return true;
}

enum disk_crash disk_take(struct sim *sim, const struct dpt_rdzv_output *output)
{
    const bool crashes = is_crash_due(sim, output);
    if (crashes && sim->crash_before_persist) {
        sim->records += output->n_records;
        return DISK_CRASH_LOST;
    }
    persist(sim, output);
    /* With hundreds of machines only at every 64th event. */
    const bool compared = sim->profile.machines <= 32 || sim->events % 64 == 0;
    const char *broken = compared ? kept_difference(sim->core, sim->disk->replica) : NULL;
    if (broken != NULL)
        sim_fail(sim, "durable state changed without a record: %s", broken);
    return crashes ? DISK_CRASH_KEPT : DISK_NO_CRASH;
}
