/* The remedies follow the config of the run: every combination of the facts that traces state. */
#include "worker/report/remedy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { FACTS = 3, MB = 1 << 20, PEAK = 100 * MB };

static const char *const strategies[] = {
    "ddp",          "simple",   "simple_ga", "hook",  "async",      "bucket_async",
    "dp",           "zero1",    "zero2",     "zero3", "full_shard", "shard_grad_op",
    "hybrid_shard", "no_shard", "unknown"};
static const char *const compressions[] = {"", "none", "bf16", "fp16", "powersgd"};
static const char *const checkpointings[] = {"", "none", "selective", "full"};
static const int64_t rooms[] = {0, PEAK / 4, PEAK}; /* 0: not known */

#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found = found || strcmp(word, words[i]) == 0;
    return found;
}

static bool says(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static struct report_run_times make_run(const char *strategy, struct report_setup setup)
{
    return (struct report_run_times){
        .strategy = strategy, .world_size = 2, .memory_peak = PEAK, .setup = setup};
}

static struct report_remedy remedy_of(enum dpt_report_cause cause,
                                      const struct report_run_times *run)
{
    const struct dpt_report_verdict verdict = {.cause = cause};
    const struct report_verdict_facts facts = {
        .work_excess_percent = 50, .knows_work = true, .run = run};
    struct report_remedy remedy;
    report_remedy_find(&verdict, &facts, &remedy);
    assert_true(strlen(remedy.text) < REPORT_REMEDY_BYTES - 1);
    if (!says(remedy.text, remedy.key))
        fail_msg("'%s' does not name %s", remedy.text, remedy.key);
    return remedy;
}

/* ---- communication ---- */

static bool may_compress(const struct report_setup *s)
{
    return s->hosts != 1 && s->may_compress != REPORT_FACT_NO &&
           (!s->compression[0] || strcmp(s->compression, "none") == 0);
}

static bool lacks_memory(const struct report_setup *s)
{
    return s->memory_free == PEAK / 4;
}

static void check_key(const char *strategy, const struct report_setup *s,
                      const struct report_remedy *remedy)
{
    static const char *const slow[] = {"simple", "simple_ga", "hook", "async", "dp"};
    const bool is_slow = is_one_of(strategy, slow, COUNT(slow)),
               gathers = s->gathers_units != REPORT_FACT_NO && !lacks_memory(s);
    const struct {
        const char *key;
        bool fits;
    } keys[] = {
        {"strategy.name", is_slow || (strcmp(strategy, "zero3") == 0 && gathers)},
        {"strategy.overlap", s->overlap == REPORT_FACT_NO},
        {"strategy.sharding", strcmp(strategy, "full_shard") == 0 && gathers},
        {"strategy.compression", may_compress(s)},
        {"train.global_batch", s->sends_slots != REPORT_FACT_YES && !may_compress(s)},
        {"train.micro_batch", s->sends_slots == REPORT_FACT_YES && !may_compress(s) &&
                                  lacks_memory(s) == says(remedy->text, "more memory")},
        {"train.activation_checkpointing", s->sends_slots == REPORT_FACT_YES && !may_compress(s) &&
                                               lacks_memory(s) &&
                                               strcmp(s->activation_checkpointing, "none") == 0},
    };
    for (size_t i = 0; i < COUNT(keys); i++)
        if (strcmp(keys[i].key, remedy->key) == 0 && keys[i].fits)
            return;
    fail_msg("%s, hosts %d, overlap %d, compression '%s' (%d), slots %d, gathers %d, %s, free "
             "%lld: advised %s: %s",
             strategy, s->hosts, s->overlap, s->compression, s->may_compress, s->sends_slots,
             s->gathers_units, s->activation_checkpointing, (long long)s->memory_free, remedy->key,
             remedy->text);
}

static void check_remedies(const char *strategy, const struct report_setup *s)
{
    const struct report_run_times run = make_run(strategy, *s);
    const struct report_remedy remedy = remedy_of(REPORT_COMMUNICATION, &run);
    char all[256];
    check_key(strategy, s, &remedy);
    assert_int_equal(says(remedy.text, "compression: bf16"),
                     strcmp(remedy.key, "strategy.compression") == 0);
    report_remedies_of_communication(&run, all, sizeof all);
    assert_true(strlen(all) < sizeof all - 1);
    assert_true(!says(all, "strategy.compression") || may_compress(s));
    assert_true(!says(all, "strategy.overlap") || s->overlap != REPORT_FACT_YES);
    assert_int_equal(says(all, "if there were more memory"),
                     s->sends_slots == REPORT_FACT_YES && lacks_memory(s));
    assert_int_equal(says(all, "train.global_batch"), s->sends_slots != REPORT_FACT_YES);
    assert_int_equal(says(all, "no bytes on one host"), s->hosts == 1);
}

static void check_words(const char *strategy, struct report_setup s)
{
    for (size_t compression = 0; compression < COUNT(compressions); compression++)
        for (size_t again = 0; again < COUNT(checkpointings); again++)
            for (size_t room = 0; room < COUNT(rooms); room++) {
                (void)snprintf(s.compression, sizeof s.compression, "%s",
                               compressions[compression]);
                (void)snprintf(s.activation_checkpointing, sizeof s.activation_checkpointing, "%s",
                               checkpointings[again]);
                s.memory_free = rooms[room];
                check_remedies(strategy, &s);
            }
}

/* Nothing that the run has, that its other keys refuse, or that its hosts and memory exclude. */
static void every_remedy_fits_the_run(void **state)
{
    (void)state;
    for (size_t strategy = 0; strategy < COUNT(strategies); strategy++)
        for (int i = 0; i < FACTS * FACTS * FACTS * FACTS * FACTS; i++)
            check_words(
                strategies[strategy],
                (struct report_setup){
                    .hosts = i % FACTS,
                    .overlap = (enum report_fact)(i / FACTS % FACTS),
                    .may_compress = (enum report_fact)(i / FACTS / FACTS % FACTS),
                    .sends_slots = (enum report_fact)(i / FACTS / FACTS / FACTS % FACTS),
                    .gathers_units = (enum report_fact)(i / FACTS / FACTS / FACTS / FACTS)});
}

/* YES and NO. */
#define RUN(n, can_overlap, can_compress, slots, gathers, word)                                    \
    .hosts = n, .overlap = REPORT_FACT_##can_overlap, .may_compress = REPORT_FACT_##can_compress,  \
    .sends_slots = REPORT_FACT_##slots, .gathers_units = REPORT_FACT_##gathers,                    \
    .compression = word

/* The sentence that a run of some kind gets. */
static void remedy_of_communication_is_the_first_that_fits(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        struct report_setup setup;
        const char *sentence;
    } cases[] = {
        {"ddp",
         {RUN(1, YES, YES, NO, NO, "none")},
         "All ranks are on one host, where compression saves"},
        {"ddp",
         {RUN(2, YES, YES, NO, NO, "none")},
         "strategy.compression: bf16 halves the bytes between hosts"},
        {"ddp", {RUN(2, YES, YES, NO, NO, "bf16")}, "A larger train.global_batch computes longer"},
        {"ddp",
         {RUN(2, YES, YES, NO, NO, "powersgd")},
         "A larger train.global_batch computes longer"},
        {"ddp", {RUN(2, YES, NO, NO, NO, "none")}, "A larger train.global_batch computes longer"},
        {"ddp", {RUN(2, NO, YES, NO, NO, "none")}, "strategy.overlap: true"},
        {"ddp",
         {RUN(2, YES, NO, NO, NO, "none"), .global_batch = 8, .micro_batch = 2,
          .memory_free = PEAK / 4},
         "exchange, and train.lanes: 4 keeps"},
        {"ddp", {0}, "If the ranks are on several hosts, strategy.compression: bf16"},
        {"simple_ga", {RUN(2, NO, NO, NO, NO, "none")}, "With strategy.name: ddp"},
        {"zero2",
         {RUN(2, YES, YES, YES, NO, "bf16")},
         "a larger train.micro_batch, with train.global_batch"},
        {"zero2",
         {RUN(1, YES, YES, YES, NO, "none")},
         "a larger train.micro_batch, with train.global_batch"},
        {"zero2",
         {RUN(1, YES, YES, YES, NO, "none"), .activation_checkpointing = "none",
          .memory_free = PEAK / 4},
         "train.activation_checkpointing: full makes room"},
        {"zero2",
         {RUN(1, YES, YES, YES, NO, "none"), .activation_checkpointing = "full",
          .memory_free = PEAK / 4},
         "needs machines with more memory"},
        {"full_shard",
         {RUN(2, YES, YES, YES, YES, "none")},
         "shard_grad_op the weights are gathered once"},
        {"full_shard", {RUN(2, YES, YES, YES, NO, "none")}, "strategy.compression: bf16 halves"},
        {"full_shard",
         {RUN(2, YES, YES, YES, YES, "none"), .memory_free = PEAK / 4},
         "strategy.compression: bf16 halves"},
        {"zero3", {RUN(1, YES, YES, YES, YES, "none")}, "strategy.name: zero2"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct report_run_times run = make_run(cases[i].strategy, cases[i].setup);
        const struct report_remedy remedy = remedy_of(REPORT_COMMUNICATION, &run);
        if (!says(remedy.text, cases[i].sentence))
            fail_msg("%s: '%s', expected '%s'", cases[i].strategy, remedy.text, cases[i].sentence);
    }
}

/* ---- the other causes ---- */

static void remedy_of_compute_is_not_the_present_precision(void **state)
{
    (void)state;
    static const struct {
        struct report_setup setup;
        const char *key, *sentence, *absent;
    } cases[] = {
        {{0}, "train.precision", "bf16 or tf32 makes it faster where", "micro_batch"},
        {{.precision = "fp32", .device = "cpu"}, "train.precision", "that multiplies bf16", "tf32"},
        {{.precision = "fp32", .device = "cuda"}, "train.precision", "bf16 or tf32", "processor"},
        {{.precision = "tf32", .device = "cuda"}, "train.precision", "bf16 makes", "tf32"},
        {{.precision = "bf16"}, "cluster.nnodes", "More ranks", "precision"},
        {{.precision = "fp16", .global_batch = 8, .micro_batch = 2},
         "cluster.nnodes",
         "More ranks",
         "precision"},
        {{.precision = "bf16", .global_batch = 4, .micro_batch = 2},
         "train.micro_batch",
         "Each rank has one micro-batch",
         "precision"},
        {{.precision = "fp32", .global_batch = 4, .micro_batch = 2},
         "train.precision",
         "bf16",
         "more ranks"},
        {{.precision = "bf16", .activation_checkpointing = "full"},
         "train.activation_checkpointing",
         "none computes nothing twice",
         "precision"},
        {{.precision = "bf16", .activation_checkpointing = "full", .memory_free = PEAK / 4},
         "cluster.nnodes",
         "More ranks",
         "twice"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct report_run_times run = make_run("ddp", cases[i].setup);
        const struct report_remedy remedy = remedy_of(REPORT_COMPUTE, &run);
        assert_string_equal(remedy.key, cases[i].key);
        assert_true(says(remedy.text, cases[i].sentence));
        assert_false(says(remedy.text, cases[i].absent));
    }
}

static void remedy_of_imbalance_is_a_batch_that_divides_evenly(void **state)
{
    (void)state;
    static const struct {
        struct report_setup setup;
        const char *key, *sentence;
    } cases[] = {
        {{0}, "train.global_batch", "a multiple of train.micro_batch times the number of ranks"},
        {{.global_batch = 6, .micro_batch = 2},
         "train.global_batch",
         "train.global_batch (6) a multiple of train.micro_batch times the number of ranks (2 x "
         "2), "
         "such as 8"},
        {{.global_batch = 8, .micro_batch = 2}, "data.train", "more even lengths"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct report_run_times run = make_run("ddp", cases[i].setup);
        const struct report_remedy remedy = remedy_of(REPORT_IMBALANCE, &run);
        assert_string_equal(remedy.key, cases[i].key);
        assert_true(says(remedy.text, cases[i].sentence));
    }
}

static void remedy_of_data_prepares_only_a_text(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        bool prepares;
    } cases[] = {{"", true}, {"text", true}, {"tokens", false}, {"images", false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct report_setup setup = {0};
        (void)snprintf(setup.data, sizeof setup.data, "%s", cases[i].data);
        const struct report_run_times run = make_run("ddp", setup);
        const struct report_remedy remedy = remedy_of(REPORT_DATA, &run);
        assert_string_equal(remedy.key, "data.train");
        assert_int_equal(says(remedy.text, "dpt-data"), cases[i].prepares);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_remedy_fits_the_run),
        cmocka_unit_test(remedy_of_communication_is_the_first_that_fits),
        cmocka_unit_test(remedy_of_compute_is_not_the_present_precision),
        cmocka_unit_test(remedy_of_imbalance_is_a_batch_that_divides_evenly),
        cmocka_unit_test(remedy_of_data_prepares_only_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
