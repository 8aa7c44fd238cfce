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
#include "worker/bench/programs.h"
#include "worker/train/state/outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIALS_MAX = 10000,
    RANKS_MAX = 8,
    FRAME_HEADER_BYTES = 16, /* in front of each message between ranks of two hosts */
    CALM_STEP_MS = 60 * 1000 /* longest time without a step in the run without faults */
};

static struct {
    const char *list; /* of strategies */
    int64_t trials, ranks, seed, n_embd;
    struct dpt_bench_real timeout_s, rebuild_mib;
    bool keep, one_host, kills_only, at_commit, cuda;
} args = {.list = "ddp",
          .trials = 40,
          .ranks = 4,
          .seed = 1,
          .n_embd = 64,
          .timeout_s = {.min = 0.2, .max = 600, .value = 5},
          .rebuild_mib = {.min = 0, .max = 1e6, .value = 16}};

static const struct dpt_option options[] = {
    {"--trials", "N", "faults, of all strategies together (40)", .number = &args.trials, .min = 1,
     .max = TRIALS_MAX},
    {"--seed", "N", "the same seed draws the same faults (1)", .number = &args.seed, .min = 0,
     .max = INT64_MAX},
    {"--strategy", "NAME,...", "ddp, zero2+shadow, full_shard+shadow, hybrid_shard, … (ddp)",
     .text = &args.list},
    {"--ranks", "N", "one for each node; of hybrid_shard two for each node (4)",
     .number = &args.ranks, .min = 2, .max = RANKS_MAX},
    {"--timeout-s", "S", "cluster.timeout_s (5)", .set = dpt_bench_set_real,
     .ctx = &args.timeout_s},
    {"--n-embd", "N", "width of the GPT-2 of 2 blocks, a multiple of 4 (64)",
     .number = &args.n_embd, .min = 4, .max = 4096},
    {"--rebuild-mib", "MIB", "strategy.rebuild_mib; 0: no second fault with shadows (16)",
     .set = dpt_bench_set_real, .ctx = &args.rebuild_mib},
    {"--one-host", .help = "nodes share memory; else each node is a host", .flag = &args.one_host},
    {"--kills", .help = "no drains, joins and stops", .flag = &args.kills_only},
    {"--at-commit", .help = "kills a rank when only some ranks have its part of a commit",
     .flag = &args.at_commit},
    {"--cuda", .help = "all ranks use one GPU of this machine, with NCCL", .flag = &args.cuda},
    {"--keep", .help = "leaves the temporary folders", .flag = &args.keep}};

struct bench {
    struct recover_strategy strategies[REC_STRATEGIES_MAX];
    int n_strategies;
    struct recover_trial *trials;
    struct recover_totals totals;
};

/* ---- the run with faults ---- */

static void print_trial(const struct recover_totals *totals, const struct recover_trial *t)
{
    printf("%3d %-22s %-9s at %-5s", totals->trials, totals->outcomes[t->strategy].strategy->name,
           recover_fault_names[t->fault], recover_aim_names[t->aim]);
    if (t->doubled)
        printf(", %s in %s (%s)", recover_fault_names[t->second], recover_aim_names[t->aim_second],
               recover_landing_names[t->landing]);
    printf(
        ": generation %llu (%s), detect %.0f, total %.0f; paused %.0f ms, next step %.0f ms after "
        "the fault%s%s; all back after %.0f ms\n",
        (unsigned long long)t->generation.number, t->generation.kind,
        t->generation.phase_ms[REC_DETECT], t->generation.phase_ms[REC_TOTAL], t->pause_ms,
        t->resumed_ms, t->survivors_kept ? "" : "; SURVIVORS RESTARTED",
        t->steps_lost > 0 ? "; STEPS LOST" : "", t->back_ms);
    (void)fflush(stdout);
}

static enum dpt_status start_all(struct recover_bench *b, struct dpt_err *err)
{
    struct recover_cluster *c = &b->cluster;
    DPT_TRY(bench_server_start(c->dir, NULL, &c->server, &c->port, err));
    for (int i = 0; i < b->nodes; i++) {
        struct recover_node *node;
        DPT_TRY(recover_node_start(c, &node, err));
        b->world += b->cluster.run.strategy->ranks_per_node;
    }
    return recover_wait(b, "all nodes train", recover_steady, err);
}

static enum dpt_status run_trials(struct bench *all, struct recover_bench *b, int strategy,
                                  int trials, struct dpt_err *err)
{
    struct recover_totals *totals = &all->totals;
    DPT_TRY(start_all(b, err));
    printf("%s: %d nodes, timeout %g s, %.1f ms a step; seed %llu\n", b->cluster.run.strategy->name,
           b->nodes, b->cluster.run.timeout_s, recover_watch_median_step_ms(&b->watch),
           (unsigned long long)b->seed);
    for (int i = 0; i < trials; i++) {
        b->trial = &all->trials[totals->trials++];
        *b->trial = (struct recover_trial){.strategy = strategy};
        DPT_TRY(recover_trial_run(b, err));
        b->trial->strategy = strategy;
        print_trial(totals, b->trial);
    }
    DPT_TRY(recover_cluster_end(&b->cluster, err));
    return recover_watch_poll(&b->watch, err);
}

/* ---- the run without faults ---- */

struct calm {
    struct recover_watch watch;
    struct recover_node *node;
};

static enum dpt_status await_calm(struct recover_bench *b, struct calm *calm, struct dpt_err *err)
{
    int64_t seen = -1, since_ms = dpt_now_ms();
    for (;;) {
        DPT_TRY(bench_programs_go_on(err));
        DPT_TRY(recover_cluster_reap(&b->cluster, err));
        DPT_TRY(recover_watch_poll(&calm->watch, err));
        if (calm->node->ended)
            return DPT_OK;
        if (calm->watch.step > seen) {
            seen = calm->watch.step;
            since_ms = dpt_now_ms();
        } else if (dpt_now_ms() - since_ms > CALM_STEP_MS)
            return dpt_fail(err, DPT_ETIMEOUT, "the undisturbed run hangs at step %lld",
                            (long long)seen);
        recover_pause();
    }
}

static enum dpt_status run_calm(struct recover_bench *b, struct calm *calm, int64_t steps,
                                char ret_hash[REC_HASH_BYTES], struct dpt_err *err)
{
    int status = 0;
    DPT_TRY(recover_calm_start(&b->cluster, steps, err));
    DPT_TRY(recover_watch_init(&calm->watch, b->cluster.dir, "calm", err));
    DPT_TRY(recover_node_start(&b->cluster, &calm->node, err));
    calm->node->stops = true;
    DPT_TRY(await_calm(b, calm, err));
    DPT_TRY(recover_watch_poll(&calm->watch, err));
    (void)recover_node_gone(calm->node, &status);
    if (status != 0)
        return dpt_fail(err, DPT_EPEER, "the undisturbed run ended with status 0x%x", status);
    DPT_TRY(recover_calm_hash(&b->cluster, ret_hash, err));
    return recover_cluster_end(&b->cluster, err);
}

/* Marks the trial in which the two runs first differ: the cause is in this trial, and every later
 * step differs as well. */
static void compare_with_calm(const struct recover_bench *b, const struct recover_watch *calm,
                              int strategy, const struct recover_totals *totals,
                              struct recover_trial *trials, struct recover_outcome *o)
{
    const int64_t differs = recover_watch_differs(&b->watch, calm, 1, b->watch.step + 1);
    o->calm_steps = differs < 0 ? b->watch.step : differs - 1;
    for (int i = 0; i < totals->trials; i++)
        if (trials[i].strategy == strategy && trials[i].measured) {
            trials[i].compared = true;
            trials[i].differs = differs >= trials[i].first_step && differs < trials[i].end_step;
        }
}

static enum dpt_status check_hash(struct bench *all, struct recover_bench *b, int strategy,
                                  struct dpt_err *err)
{
    struct recover_outcome *o = &all->totals.outcomes[strategy];
    struct calm calm = {.node = NULL};
    int64_t step = 0;
    DPT_TRY(recover_cluster_saved(&b->cluster, &step, o->hash, err));
    if (step != b->watch.step)
        return dpt_fail(err, DPT_EPEER, "the run ended at step %lld, its newest checkpoint is %lld",
                        (long long)b->watch.step, (long long)step);
    enum dpt_status status = run_calm(b, &calm, step, o->calm_hash, err);
    compare_with_calm(b, &calm.watch, strategy, &all->totals, all->trials, o);
    printf("%s: step %lld %s, undisturbed %s\n", o->strategy->name, (long long)step, o->hash,
           o->calm_hash);
    recover_watch_fini(&calm.watch);
    return status;
}

/* ---- one strategy ---- */

static void take_outcome(const struct recover_bench *b, struct recover_outcome *o)
{
    o->generations = b->watch.newest;
    o->steps = b->watch.step;
    o->steps_lost = b->watch.steps_lost;
    o->steps_repeated = b->watch.steps_repeated;
    o->steps_skipped = b->watch.steps_skipped;
    o->step_ms = recover_watch_median_step_ms(&b->watch);
    o->rebuilds = b->watch.rebuilds;
    o->outcomes_told = recover_cluster_count(&b->cluster, "with the outcome that a survivor had");
}

static enum dpt_status run_strategy(struct bench *all, int strategy, struct dpt_err *err)
{
    struct recover_outcome *o = &all->totals.outcomes[strategy];
    const struct recover_strategy *s = &all->strategies[strategy];
    const int n = all->n_strategies, ranks = (int)args.ranks, trials = (int)args.trials;
    struct recover_bench *b = calloc(1, sizeof *b);
    DPT_ASSERT(b);
    b->seed = (uint64_t)args.seed;
    b->kills_only = args.kills_only;
    b->at_commit = args.at_commit;
    b->draws = (uint64_t)strategy << 32;
    b->nodes = ranks / s->ranks_per_node;
    b->commit_bytes = FRAME_HEADER_BYTES + dpt_contribution_bytes((REC_SLOTS + ranks - 1) / ranks);
    *o = (struct recover_outcome){.strategy = s, .nodes = b->nodes};
    all->totals.n_outcomes = strategy + 1;
    const struct recover_run run = {.strategy = s,
                                    .nodes_max = b->nodes + 1,
                                    .n_embd = (int)args.n_embd,
                                    .timeout_s = args.timeout_s.value,
                                    .cuda = args.cuda,
                                    .rebuild_mib = args.rebuild_mib.value,
                                    .one_host = args.one_host};
    enum dpt_status status = recover_cluster_create(&run, &b->cluster, err);
    if (status == DPT_OK)
        status = recover_watch_init(&b->watch, b->cluster.dir, "log", err);
    if (status == DPT_OK)
        status = run_trials(all, b, strategy, trials / n + (strategy < trials % n), err);
    take_outcome(b, o);
    if (status == DPT_OK)
        status = check_hash(all, b, strategy, err);
    all->totals.hangs += status == DPT_ETIMEOUT;
    if (status != DPT_OK && status != DPT_EABORTED)
        recover_cluster_tell(&b->cluster);
    recover_cluster_destroy(&b->cluster, args.keep);
    recover_watch_fini(&b->watch);
    free(b);
    return status;
}

static enum dpt_status run_all(struct bench *all, struct dpt_err *err)
{
    const int64_t began_ms = dpt_now_ms();
    (void)getloadavg(&all->totals.load_before, 1);
    enum dpt_status status = DPT_OK;
    for (int s = 0; s < all->n_strategies && status == DPT_OK; s++)
        status = run_strategy(all, s, err);
    if (status != DPT_OK)
        status = dpt_wrap(err, status, "trial %d", all->totals.trials);
    all->totals.clean = status == DPT_OK;
    all->totals.seconds = (double)(dpt_now_ms() - began_ms) * 1e-3;
    (void)getloadavg(&all->totals.load_after, 1);
    return status;
}

static enum dpt_status check_recover_args(struct bench *all, struct dpt_err *err)
{
    if (args.n_embd % 4 != 0)
        return dpt_fail(err, DPT_EINVAL, "--n-embd: expected a multiple of 4, got %d",
                        (int)args.n_embd);
    const enum dpt_status status = recover_strategies_parse(
        args.list, (int)args.ranks, all->strategies, &all->n_strategies, err);
    return dpt_wrap(err, status, "--strategy");
}

static enum dpt_status run_recover(json_t **ret_report, struct dpt_err *err)
{
    struct bench all = {.totals = {.n_embd = (int)args.n_embd,
                                   .trials_wanted = (int)args.trials,
                                   .timeout_s = args.timeout_s.value,
                                   .rebuild_mib = args.rebuild_mib.value,
                                   .one_host = args.one_host,
                                   .seed = (uint64_t)args.seed}};
    DPT_TRY(check_recover_args(&all, err));
    DPT_TRY(bench_programs_begin(err));
    all.trials = calloc((size_t)args.trials, sizeof *all.trials);
    DPT_ASSERT(all.trials);
    enum dpt_status status = run_all(&all, err);
    recover_report_sum(all.trials, &all.totals);
    recover_report_print(all.trials, &all.totals);
    *ret_report = recover_report_json(all.trials, &all.totals);
    if (status == DPT_OK && !recover_report_is_good(&all.totals))
        status = dpt_fail(err, DPT_ECORRUPT, "the runs were not as they must be: see the report");
    free(all.trials);
    return status;
}

const struct dpt_bench dpt_bench_recover = {
    .name = "recover",
    .help = "the cost of a failure: kills, drains and joins in a run of each strategy",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_recover};
