/* dpt-bench recover: the cost of a failure. The real programs train on this machine. The bench
 * injects faults that a seed draws, one after another, and reads from the logs how long the run
 * takes to continue.
 *
 * Each strategy has one run of many trials. A trial
 *   - draws a fault and a moment, and injects the fault;
 *   - in some cases injects a second fault while the next generation forms;
 *   - waits until a generation without the lost ranks has completed a step;
 *   - restores the initial number of nodes.
 * Every wait has a deadline. A missed deadline is a hang and ends the bench. After the trials the
 * same config runs without faults for the same number of steps. Both runs must have the same loss
 * and gradient norm at every step, and the same weights hash at the end. */
#include "worker/bench/bench.h"

#include "base/clock.h"
#include "worker/bench/bench_recover_trial.h"
#include "worker/train/state/outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIALS_MAX = 10000,
    RANKS_MAX = 8,
    REBUILD_MIB = 16,
    FRAME_HEADER_BYTES = 16, /* in front of each message between ranks of two hosts */
    CALM_STEP_MS = 60 * 1000 /* longest time without a step in the run without faults */
};

struct arguments {
    int trials, ranks, n_embd;
    uint64_t seed;
    double timeout_s, rebuild_mib;
    const char *json;
    bool keep, one_host, kills_only, at_commit, cuda;
    struct rec_strategy strategies[REC_STRATEGIES_MAX];
    int n_strategies;
};

struct bench {
    const struct arguments *args;
    struct rec_trial *trials;
    struct rec_totals totals;
};

static void on_signal(int number)
{
    rec_stop_signal = number;
}

/* ---- the run with faults ---- */

static bool listens(struct rec_bench *b)
{
    return rec_server_listens(&b->cluster);
}

static void print_trial(const struct rec_totals *totals, const struct rec_trial *t)
{
    printf("%3d %-22s %-9s at %-5s", totals->trials, totals->outcomes[t->strategy].strategy->name,
           rec_fault_names[t->fault], rec_aim_names[t->aim]);
    if (t->doubled)
        printf(", %s in %s (%s)", rec_fault_names[t->second], rec_aim_names[t->aim_second],
               rec_landing_names[t->landing]);
    printf(
        ": generation %llu (%s), detect %.0f, total %.0f; paused %.0f ms, next step %.0f ms after "
        "the fault%s%s; all back after %.0f ms\n",
        (unsigned long long)t->generation.number, t->generation.kind,
        t->generation.phase_ms[REC_DETECT], t->generation.phase_ms[REC_TOTAL], t->pause_ms,
        t->resumed_ms, t->survivors_kept ? "" : "; SURVIVORS RESTARTED",
        t->steps_lost > 0 ? "; STEPS LOST" : "", t->back_ms);
    (void)fflush(stdout);
}

static enum dpt_status start_all(struct rec_bench *b, struct dpt_err *err)
{
    DPT_TRY(rec_server_start(&b->cluster, err));
    DPT_TRY(rec_wait(b, "the server listens", listens, err));
    for (int i = 0; i < b->nodes; i++) {
        struct rec_node *node;
        DPT_TRY(rec_node_start(&b->cluster, &node, err));
        b->world += b->cluster.run.strategy->ranks_per_node;
    }
    return rec_wait(b, "all nodes train", rec_steady, err);
}

static enum dpt_status run_trials(struct bench *all, struct rec_bench *b, int strategy, int trials,
                                  struct dpt_err *err)
{
    struct rec_totals *totals = &all->totals;
    DPT_TRY(start_all(b, err));
    printf("%s: %d nodes, timeout %g s, %.1f ms a step; seed %llu\n", b->cluster.run.strategy->name,
           b->nodes, b->cluster.run.timeout_s, rec_watch_median_step_ms(&b->watch),
           (unsigned long long)b->seed);
    for (int i = 0; i < trials; i++) {
        b->trial = &all->trials[totals->trials++];
        *b->trial = (struct rec_trial){.strategy = strategy};
        DPT_TRY(rec_trial_run(b, err));
        b->trial->strategy = strategy;
        print_trial(totals, b->trial);
    }
    DPT_TRY(rec_cluster_end(&b->cluster, err));
    return rec_watch_poll(&b->watch, err);
}

/* ---- the run without faults ---- */

struct calm {
    struct rec_watch watch;
    struct rec_node *node;
};

static enum dpt_status await_calm(struct rec_bench *b, struct calm *calm, struct dpt_err *err)
{
    int64_t seen = -1, since_ms = dpt_now_ms();
    for (;;) {
        if (rec_stop_signal)
            return dpt_fail(err, DPT_EABORTED, "ended by signal %d", (int)rec_stop_signal);
        DPT_TRY(rec_cluster_reap(&b->cluster, err));
        DPT_TRY(rec_watch_poll(&calm->watch, err));
        if (calm->node->ended)
            return DPT_OK;
        if (calm->watch.step > seen) {
            seen = calm->watch.step;
            since_ms = dpt_now_ms();
        } else if (dpt_now_ms() - since_ms > CALM_STEP_MS)
            return dpt_fail(err, DPT_ETIMEOUT, "the undisturbed run hangs at step %lld",
                            (long long)seen);
        rec_pause();
    }
}

static enum dpt_status run_calm(struct rec_bench *b, struct calm *calm, int64_t steps,
                                char ret_hash[REC_HASH_BYTES], struct dpt_err *err)
{
    int status = 0;
    DPT_TRY(rec_calm_start(&b->cluster, steps, err));
    DPT_TRY(rec_wait(b, "the server listens", listens, err));
    DPT_TRY(rec_watch_init(&calm->watch, b->cluster.dir, "calm", err));
    DPT_TRY(rec_node_start(&b->cluster, &calm->node, err));
    calm->node->stops = true;
    DPT_TRY(await_calm(b, calm, err));
    DPT_TRY(rec_watch_poll(&calm->watch, err));
    (void)rec_node_gone(calm->node, &status);
    if (status != 0)
        return dpt_fail(err, DPT_EPEER, "the undisturbed run ended with status 0x%x", status);
    DPT_TRY(rec_calm_hash(&b->cluster, ret_hash, err));
    return rec_cluster_end(&b->cluster, err);
}

/* Marks the trial in which the two runs first differ: the cause is in this trial, and every later
 * step differs as well. */
static void compare_with_calm(const struct rec_bench *b, const struct rec_watch *calm, int strategy,
                              const struct rec_totals *totals, struct rec_trial *trials,
                              struct rec_outcome *o)
{
    const int64_t differs = rec_watch_differs(&b->watch, calm, 1, b->watch.step + 1);
    o->calm_steps = differs < 0 ? b->watch.step : differs - 1;
    for (int i = 0; i < totals->trials; i++)
        if (trials[i].strategy == strategy && trials[i].measured) {
            trials[i].compared = true;
            trials[i].differs = differs >= trials[i].first_step && differs < trials[i].end_step;
        }
}

static enum dpt_status check_hash(struct bench *all, struct rec_bench *b, int strategy,
                                  struct dpt_err *err)
{
    struct rec_outcome *o = &all->totals.outcomes[strategy];
    struct calm calm = {.node = NULL};
    int64_t step = 0;
    DPT_TRY(rec_cluster_saved(&b->cluster, &step, o->hash, err));
    if (step != b->watch.step)
        return dpt_fail(err, DPT_EPEER, "the run ended at step %lld, its newest checkpoint is %lld",
                        (long long)b->watch.step, (long long)step);
    enum dpt_status status = run_calm(b, &calm, step, o->calm_hash, err);
    compare_with_calm(b, &calm.watch, strategy, &all->totals, all->trials, o);
    printf("%s: step %lld %s, undisturbed %s\n", o->strategy->name, (long long)step, o->hash,
           o->calm_hash);
    rec_watch_fini(&calm.watch);
    return status;
}

/* ---- one strategy ---- */

static void take_outcome(const struct rec_bench *b, struct rec_outcome *o)
{
    o->generations = b->watch.newest;
    o->steps = b->watch.step;
    o->steps_lost = b->watch.steps_lost;
    o->steps_repeated = b->watch.steps_repeated;
    o->steps_skipped = b->watch.steps_skipped;
    o->step_ms = rec_watch_median_step_ms(&b->watch);
    o->rebuilds = b->watch.rebuilds;
    o->outcomes_told = rec_cluster_count(&b->cluster, "with the outcome that a survivor had");
}

static enum dpt_status run_strategy(struct bench *all, int strategy, struct dpt_err *err)
{
    const struct arguments *args = all->args;
    struct rec_outcome *o = &all->totals.outcomes[strategy];
    const struct rec_strategy *s = &args->strategies[strategy];
    const int n = args->n_strategies;
    struct rec_bench *b = calloc(1, sizeof *b);
    DPT_ASSERT(b);
    b->seed = args->seed;
    b->kills_only = args->kills_only;
    b->at_commit = args->at_commit;
    b->draws = (uint64_t)strategy << 32;
    b->nodes = args->ranks / s->ranks_per_node;
    b->commit_bytes =
        FRAME_HEADER_BYTES + dpt_contribution_bytes((REC_SLOTS + args->ranks - 1) / args->ranks);
    *o = (struct rec_outcome){.strategy = s, .nodes = b->nodes};
    all->totals.n_outcomes = strategy + 1;
    const struct rec_run run = {.strategy = s,
                                .nodes_max = b->nodes + 1,
                                .n_embd = args->n_embd,
                                .timeout_s = args->timeout_s,
                                .cuda = args->cuda,
                                .rebuild_mib = args->rebuild_mib,
                                .one_host = args->one_host};
    enum dpt_status status = rec_cluster_create(&run, &b->cluster, err);
    if (status == DPT_OK)
        status = rec_watch_init(&b->watch, b->cluster.dir, "log", err);
    if (status == DPT_OK)
        status =
            run_trials(all, b, strategy, args->trials / n + (strategy < args->trials % n), err);
    take_outcome(b, o);
    if (status == DPT_OK)
        status = check_hash(all, b, strategy, err);
    all->totals.hangs += status == DPT_ETIMEOUT;
    if (status != DPT_OK && status != DPT_EABORTED)
        rec_cluster_tell(&b->cluster);
    rec_cluster_destroy(&b->cluster, args->keep);
    rec_watch_fini(&b->watch);
    free(b);
    return status;
}

/* ---- arguments ---- */

static bool take_number(const char *text, double min, double max, double *ret)
{
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= min && value <= max))
        return false;
    *ret = value;
    return true;
}

static const char usage[] =
    "usage: dpt-bench recover [--trials 40] [--seed 1] [--strategy ddp,…] [--ranks 4] "
    "[--timeout-s 5] [--n-embd 64] [--rebuild-mib 16] [--one-host] [--kills] [--at-commit] "
    "[--cuda] [--json FILE] [--keep]\n"
    "  trials: over all strategies together; strategy: such as ddp, zero2+shadow, "
    "full_shard+shadow, hybrid_shard; ranks: 2 to 8, on a node each, of hybrid_shard two on a "
    "node; timeout-s: cluster.timeout_s; n-embd: width of the GPT-2 of 2 blocks, a multiple of "
    "4; rebuild-mib: strategy.rebuild_mib, with 0 no second faults where there are shadows; "
    "one-host: nodes share memory, else each is a host of its own; kills: no drains, joins and "
    "stops; at-commit: single faults, about the end of a step, kills of a rank whose "
    "contribution to the commit some have and others not; cuda: all ranks on this machine's "
    "GPU, "
    "by NCCL; keep: leave the temporary folders\n";
_Static_assert(RANKS_MAX == 8, "the usage says so");

static bool take_flag(const char *text, struct arguments *a)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--keep", &a->keep},
                 {"--one-host", &a->one_host},
                 {"--kills", &a->kills_only},
                 {"--at-commit", &a->at_commit},
                 {"--cuda", &a->cuda}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(text, flags[i].name) == 0)
            return *flags[i].flag = true;
    return false;
}

static bool parse_recover_args(int argc, char **argv, struct arguments *a)
{
    double trials = 40, ranks = 4, seed = 1, n_embd = 64;
    const char *strategies = "ddp";
    struct dpt_err err;
    *a = (struct arguments){.timeout_s = 5, .rebuild_mib = REBUILD_MIB};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true;
        if (take_flag(argv[i], a))
            continue;
        if (strcmp(argv[i], "--trials") == 0)
            ok = take_number(value, 1, TRIALS_MAX, &trials);
        else if (strcmp(argv[i], "--ranks") == 0)
            ok = take_number(value, 2, RANKS_MAX, &ranks);
        else if (strcmp(argv[i], "--seed") == 0)
            ok = take_number(value, 0, 9e15, &seed);
        else if (strcmp(argv[i], "--timeout-s") == 0)
            ok = take_number(value, 0.2, 600, &a->timeout_s);
        else if (strcmp(argv[i], "--rebuild-mib") == 0)
            ok = take_number(value, 0, 1e6, &a->rebuild_mib);
        else if (strcmp(argv[i], "--n-embd") == 0)
            ok = take_number(value, 4, 4096, &n_embd) && (int)n_embd % 4 == 0;
        else if (strcmp(argv[i], "--strategy") == 0)
            strategies = value;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else
            ok = false;
        if (!ok || !*value)
            return dpt_bench_misused("recover", usage, argv[i]);
        i++;
    }
    a->trials = (int)trials;
    a->ranks = (int)ranks;
    a->n_embd = (int)n_embd;
    a->seed = (uint64_t)seed;
    if (rec_strategies_parse(strategies, a->ranks, a->strategies, &a->n_strategies, &err) == DPT_OK)
        return true;
    (void)fprintf(stderr, "dpt-bench recover: --strategy: %s\n", err.text);
    return false;
}

static int finish(struct bench *all)
{
    (void)getloadavg(&all->totals.load_after, 1);
    rec_report_sum(all->trials, &all->totals);
    rec_report_print(all->trials, &all->totals);
    int code = dpt_bench_finish(&(struct dpt_bench_args){.json = all->args->json},
                                rec_report_json(all->trials, &all->totals));
    return rec_report_is_good(&all->totals) ? code : 1;
}

static int run_recover(int argc, char **argv)
{
    struct arguments args;
    struct dpt_err err;
    if (!parse_recover_args(argc, argv, &args))
        return 2;
    struct sigaction action = {.sa_handler = on_signal};
    if (sigaction(SIGINT, &action, NULL) != 0 || sigaction(SIGTERM, &action, NULL) != 0 ||
        sigaction(SIGHUP, &action, NULL) != 0) {
        perror("dpt-bench recover: signals");
        return 1;
    }
    struct bench all = {.args = &args,
                        .totals = {.n_embd = args.n_embd,
                                   .trials_wanted = args.trials,
                                   .timeout_s = args.timeout_s,
                                   .rebuild_mib = args.rebuild_mib,
                                   .one_host = args.one_host,
                                   .seed = args.seed}};
    all.trials = calloc((size_t)args.trials, sizeof *all.trials);
    DPT_ASSERT(all.trials);
    (void)getloadavg(&all.totals.load_before, 1);
    const int64_t began_ms = dpt_now_ms();
    enum dpt_status status = DPT_OK;
    for (int s = 0; s < args.n_strategies && status == DPT_OK; s++)
        status = run_strategy(&all, s, &err);
    all.totals.clean = status == DPT_OK;
    all.totals.seconds = (double)(dpt_now_ms() - began_ms) * 1e-3;
    if (status != DPT_OK)
        (void)fprintf(stderr, "dpt-bench recover: trial %d: %s\n", all.totals.trials, err.text);
    int code = finish(&all);
    free(all.trials);
    return code;
}

const struct dpt_bench dpt_bench_recover = {
    .name = "recover",
    .help = "what a failure costs: kills, drains, joins in a real run of each strategy",
    .run = run_recover};
