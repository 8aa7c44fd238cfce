/* What the director waits for: phases of a formation, steps, checkpoints, ends. Every wait has a
 * deadline. */
#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "tests/worker/train/director_internal.h"

#include <stdio.h>
#include <string.h>

/* Waits until all living ranks are in the phase; false: a communicator broke. */
static bool await_phase(struct director *d, Dpt__RankPhase phase)
{
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    for (;;) {
        int missing = 0;
        for (int i = 0; i < d->n; i++) {
            if (!d->member[i].alive ||
                (d->member[i].benched && phase != DPT__RANK_PHASE__RANK_QUIESCED))
                continue;
            if (d->member[i].said && d->member[i].said->fatal)
                director_fail(d->member[i].said->state->text);
            missing += !director_in_phase(d, &d->member[i], phase);
            if (phase != DPT__RANK_PHASE__RANK_QUIESCED && director_says_broken(d, &d->member[i]))
                return false;
        }
        if (missing == 0)
            return true;
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "a rank did not reach its phase in time");
        director_listen_once(d, 100);
    }
}

void director_prepare(struct director *d, bool soft)
{
    d->generation++;
    director_tell_all(d, soft ? DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT
                              : DPT__RANK_COMMAND__COMMAND_PREPARE);
    if (!await_phase(d, DPT__RANK_PHASE__RANK_QUIESCED))
        director_fail("quiescing cannot break");
}

void director_await_ready(struct director *d)
{
    if (!await_phase(d, DPT__RANK_PHASE__RANK_READY))
        director_fail_at(d, "a generation broke before it was ready");
}

bool director_form(struct director *d, bool soft)
{
    director_prepare(d, soft);
    director_plan(d);
    if (!await_phase(d, DPT__RANK_PHASE__RANK_READY))
        return false;
    d->ran = d->generation;
    d->lost = false;
    bool handed_over = false;
    for (int i = 0; i < d->n; i++) {
        struct member *m = &d->member[i];
        handed_over = handed_over || (plays(m) && m->retires);
        m->benched = m->benched || m->retires;
    }
    if (handed_over) /* the retiring rank has handed over its state: continue without it */
        return director_form(d, false);
    for (int i = 0; i < d->n; i++)
        if (plays(&d->member[i]))
            director_send(d, &d->member[i], DPT__RANK_COMMAND__COMMAND_GO, NULL);
    return true;
}

int director_rescue(struct director *d, int ms)
{
    const int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    d->rescue_by_ms = dpt_now_ms() + ms;
    director_tell_all(d, DPT__RANK_COMMAND__COMMAND_RESCUE);
    for (;;) {
        int whole = 0, waits = 0;
        for (int i = 0; i < d->n; i++) {
            const Dpt__RankToAgent *said = d->member[i].alive ? d->member[i].said : NULL;
            whole += said && said->state->rescued_step > 0;
            waits += said && said->state->rescued_step == 0 && !said->state->rescue_failed;
        }
        if (waits == 0)
            return whole;
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "a rank did not rescue in time");
        director_listen_once(d, 100);
    }
}

static bool all_finished(const struct director *d)
{
    for (int i = 0; i < d->n; i++)
        if (plays(&d->member[i]) &&
            !director_in_phase(d, &d->member[i], DPT__RANK_PHASE__RANK_FINISHED))
            return false;
    return true;
}

static bool any_broken(const struct director *d)
{
    for (int i = 0; i < d->n; i++)
        if (d->member[i].alive && director_says_broken(d, &d->member[i]))
            return true;
    return false;
}

void director_await_step(struct director *d, int64_t step)
{
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    int64_t best = d->best_step;
    while (d->best_step < step && !all_finished(d)) {
        if (d->best_step > best) {
            best = d->best_step;
            deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
        }
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "no progress");
        director_listen_once(d, 100);
    }
}

void director_await_checkpoint(struct director *d, int64_t step)
{
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    for (;;) {
        int64_t newest = -1;
        struct dpt_err err;
        if (dpt_checkpoint_newest(d->config.checkpoint.dir, &newest, &err) != DPT_OK)
            director_fail(err.text);
        if (newest >= step)
            return;
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "no checkpoint");
        director_listen_once(d, 20);
    }
}

const char *director_await_fatal(struct director *d)
{
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    for (;;) {
        const char *text = NULL;
        for (int i = 0; i < d->n; i++)
            if (d->member[i].alive && director_fatal(d, i, &text))
                return text;
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "nobody said that the run cannot go on");
        director_listen_once(d, 100);
    }
}

const char *director_await_broken(struct director *d)
{
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    for (;;) {
        for (int i = 0; i < d->n; i++) {
            const struct member *m = &d->member[i];
            if (!m->alive || !m->said || !m->said->broken)
                continue;
            (void)snprintf(d->broken_text, sizeof d->broken_text, "%s", m->said->state->text);
            director_kill(d, i);
            return d->broken_text;
        }
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "nobody said that it is broken");
        director_listen_once(d, 100);
    }
}

const char *director_finish(struct director *d)
{
    static char hash[64];
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS, best = d->best_step;
    while (!all_finished(d)) {
        const char *text = NULL;
        if (d->best_step > best) {
            best = d->best_step;
            deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
        }
        for (int i = 0; i < d->n; i++)
            if (d->member[i].alive && director_fatal(d, i, &text))
                director_fail_at(d, text);
        if (dpt_now_ms() > deadline)
            director_fail_at(d, "the run did not finish");
        if (any_broken(d))
            (void)director_form(d, false);
        director_listen_once(d, 100);
    }
    hash[0] = '\0';
    for (int i = 0; i < d->n; i++) {
        const struct member *m = &d->member[i];
        if (!plays(m))
            continue;
        if (hash[0] && strcmp(hash, m->said->state->weights_hash) != 0)
            director_fail("two ranks end with different weights");
        (void)snprintf(hash, sizeof hash, "%s", m->said->state->weights_hash);
    }
    director_tell_all(d, DPT__RANK_COMMAND__COMMAND_EXIT);
    return hash;
}
