/* Fuzz target: messages of other ranks about a step: an outcome that the plan hands over, the
 * contributions of all ranks to a commit, and the run's history. The first byte chooses one.
 * Accepted input packs and unpacks to the same. */
#include "tests/fuzz/fuzz.h"
#include "worker/train/state/generation_history.h"
#include "worker/train/state/outcome.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_MAX = 8, WORLD_MAX = 4 };

/* An accepted outcome is complete: it packs to bytes that unpack to the same bytes. */
static void pack_again(const struct dpt_outcome *outcome)
{
    uint8_t first[DPT_OUTCOME_BYTES_MAX], second[DPT_OUTCOME_BYTES_MAX];
    size_t first_bytes, second_bytes;
    double losses[SLOTS_MAX];
    struct dpt_outcome copy = {.losses = losses};
    struct dpt_err err;
    DPT_ASSERT(dpt_outcome_pack(outcome, first, sizeof first, &first_bytes, &err) == DPT_OK);
    DPT_ASSERT(dpt_outcome_unpack(first, first_bytes, outcome->slots, &copy, &err) == DPT_OK);
    DPT_ASSERT(dpt_outcome_pack(&copy, second, sizeof second, &second_bytes, &err) == DPT_OK);
    DPT_ASSERT(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
}

static void unpack(struct feed *feed)
{
    const int slots = 1 + (int)feed_below(feed, SLOTS_MAX);
    size_t n;
    const uint8_t *rest = feed_rest(feed, &n);
    double losses[SLOTS_MAX];
    struct dpt_outcome outcome = {.step = -1, .losses = losses};
    struct dpt_err err = {.status = DPT_OK};
    if (dpt_outcome_unpack(rest, n, slots, &outcome, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EPROTO && outcome.step == -1);
        return;
    }
    DPT_ASSERT(outcome.step >= 0 && outcome.slots == slots);
    pack_again(&outcome);
}

/* As the small all-gather fills it: every rank's share has the same length. */
static void fold(struct feed *feed)
{
    const int world = 1 + (int)feed_below(feed, WORLD_MAX);
    const int slots = 1 + (int)feed_below(feed, SLOTS_MAX);
    const int slots_max = (slots + world - 1) / world;
    const int64_t step = feed_u8(feed);
    const size_t room = (size_t)world * dpt_contribution_bytes(slots_max);
    uint8_t *all = calloc(1, room);
    DPT_ASSERT(all != NULL);
    size_t n;
    const uint8_t *rest = feed_rest(feed, &n);
    if (n > 0)
        memcpy(all, rest, n < room ? n : room);
    double losses[SLOTS_MAX];
    struct dpt_outcome outcome = {.losses = losses};
    struct dpt_err err = {.status = DPT_OK};
    const struct dpt_commit_world of = {
        .step = step, .size = world, .slots = slots, .slots_max = slots_max};
    if (dpt_outcome_combine(&of, all, &outcome, &err) == DPT_OK) {
        DPT_ASSERT(outcome.step == step && outcome.slots == slots);
        pack_again(&outcome);
    } else {
        DPT_ASSERT(err.status == DPT_EPROTO && err.text[0] != '\0');
    }
    free(all);
}

static void history(struct feed *feed)
{
    static struct dpt_history first, second;
    size_t n;
    const uint8_t *rest = feed_rest(feed, &n);
    char *text = malloc(n + 1);
    DPT_ASSERT(text != NULL);
    memcpy(text, rest, n);
    text[n] = '\0';
    struct dpt_err err = {.status = DPT_OK};
    const struct dpt_history_entry entry = {
        .generation = 3, .step = 7, .world_size = 2, .kind = "joined", .cause = "node b joined"};
    dpt_history_init(&first);
    if (dpt_history_load(&first, text, &err) == DPT_OK) {
        DPT_ASSERT(dpt_history_load(&second, first.json, &err) == DPT_OK);
        DPT_ASSERT(strcmp(first.json, second.json) == 0);
        DPT_ASSERT(dpt_history_append(&first, &entry, &err) == DPT_OK);
        DPT_ASSERT(strlen(first.json) < sizeof first.json);
    } else {
        DPT_ASSERT(err.status == DPT_ECORRUPT && strcmp(first.json, "[]") == 0);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    switch (feed_below(&feed, 3)) {
    case 0:
        unpack(&feed);
        break;
    case 1:
        fold(&feed);
        break;
    default:
        history(&feed);
    }
    return 0;
}
