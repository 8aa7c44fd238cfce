/* dpt-bench recover: what a failure costs. The real programs train on this machine; one fault after
 * another, drawn by a seed, is done to them; how long the run takes to go on is read from its logs.
 *
 * A trial: draw a fault and a moment within a step, do it, in some trials do a second one when the
 * next generation has begun to form; wait until a generation without what died has completed a
 * step; then bring the number of nodes back to what it was. Every wait has a deadline; a missed one
 * is a hang and ends the run. */
#include "tests/bench/bench.h"

#include "base/clock.h"
#include "base/rng.h"
#include "tests/bench/bench_recover_cluster.h"
#include "tests/bench/bench_recover_report.h"
#include "tests/bench/bench_recover_watch.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum {
    TRIALS_MAX = 10000,
    DEADLINE_TIMEOUTS = 12, /* a wait's deadline, in timeouts … */
    DEADLINE_MS_MIN = 60 * 1000,
    STEADY_STEPS = 3, /* that many, and a generation counts as running */
    SECOND_MS = 50    /* the second fault comes within that of the formation's beginning */
};

struct arguments {
    int trials, nodes, n_embd;
    uint64_t seed;
    double timeout_s;
    const char *json;
    bool keep;
};

struct survivor {
    const struct rec_node *node;
    pid_t agent, rank;
};

struct bench {
    const struct arguments *args;
    struct rec_cluster cluster;
    struct rec_watch watch;
    uint64_t draws;
    struct rec_trial *trials;
    int n_trials, hangs;

    /* The trial that runs. */
    struct rec_trial *trial;
    uint64_t from;                          /* newest generation when the last fault came */
    uint64_t resumed;                       /* the generation that went on */
    int world;                              /* wanted */
    int ranks_killed;                       /* of those who are wanted */
    const struct rec_node *rank_victims[2]; /* nodes of those ranks … */
    pid_t rank_was[2];                      /* … what they were … */
    double rank_again[2];                   /* … and when there was another one; 0: not yet */
    struct rec_node *victim;                /* of the first fault; the joiner of a join */
    struct rec_node *second_victim;
    struct survivor survivors[REC_NODES_MAX];
    int n_survivors;
};

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

/* ---- waiting ---- */

static uint32_t draw(struct bench *b, uint32_t n)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(b->args->seed, DPT_RNG_TEST, 0, 0, 0), b->draws++, block);
    return block[0] % n;
}

/* Looks at everything once. */
static enum dpt_status look(struct bench *b, struct dpt_err *err)
{
    if (stop_signal)
        return dpt_fail(err, DPT_EABORTED, "ended by signal %d", (int)stop_signal);
    DPT_TRY(rec_cluster_reap(&b->cluster, err));
    DPT_TRY(rec_watch_poll(&b->watch, err));
    for (int i = 0; i < b->ranks_killed; i++) {
        pid_t rank = b->rank_again[i] > 0 ? 0 : rec_node_rank(b->rank_victims[i]);
        if (rank > 0 && rank != b->rank_was[i])
            b->rank_again[i] = dpt_wall_seconds();
    }
    return DPT_OK;
}

static int64_t deadline_ms(const struct bench *b)
{
    int64_t ms = (int64_t)(b->args->timeout_s * 1000) * DEADLINE_TIMEOUTS;
    return ms > DEADLINE_MS_MIN ? ms : DEADLINE_MS_MIN;
}

static enum dpt_status wait_for(struct bench *b, const char *what, bool (*there)(struct bench *),
                                struct dpt_err *err)
{
    int64_t deadline = dpt_now_ms() + deadline_ms(b);
    for (;;) {
        DPT_TRY(look(b, err));
        if (there(b))
            return DPT_OK;
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "hang: not within %lld ms: %s",
                            (long long)deadline_ms(b), what);
        rec_pause();
    }
}

/* The moment of a fault is drawn; nothing is waited for. */
static enum dpt_status wait_drawn(struct bench *b, double ms, struct dpt_err *err)
{
    int64_t until = dpt_now_ns() + (int64_t)(ms * 1e6);
    do {
        DPT_TRY(look(b, err));
    } while (dpt_now_ns() < until);
    return DPT_OK;
}

static bool listens(struct bench *b)
{
    return rec_server_listens(&b->cluster);
}

static bool forms(struct bench *b)
{
    return b->watch.newest_forming > b->from;
}

/* The world that is wanted trains, and nothing else is under way. */
static bool steady(struct bench *b)
{
    const struct rec_generation *g = rec_watch_generation(&b->watch, b->watch.newest);
    return g && g->world == b->world && g->steps >= STEADY_STEPS &&
           b->watch.newest_forming <= b->watch.newest;
}

static bool victim_ended(struct bench *b)
{
    return b->victim->ended;
}

static bool second_victim_ended(struct bench *b)
{
    return b->second_victim->ended;
}

/* A generation made without what died: its world is that of the others; or the nodes that lost only
 * their rank are back with new ones. */
static bool made_without_the_dead(const struct bench *b, const struct rec_generation *g)
{
    if (g->steps == 0 || g->world > b->world)
        return false;
    if (g->world <= b->world - b->ranks_killed)
        return g->world == b->world - b->ranks_killed;
    for (int i = 0; i < b->ranks_killed; i++)
        if (b->rank_again[i] <= 0 || g->first_step < b->rank_again[i])
            return false;
    return true;
}

static bool resumed(struct bench *b)
{
    for (uint64_t n = b->from + 1; n <= b->watch.newest; n++) {
        const struct rec_generation *g = rec_watch_generation(&b->watch, n);
        if (g && made_without_the_dead(b, g)) {
            b->resumed = n;
            return true;
        }
    }
    return false;
}

/* ---- faults ---- */

/* A running node other than `not`, drawn. */
static struct rec_node *draw_node(struct bench *b, const struct rec_node * not )
{
    struct rec_node *running[REC_NODES_MAX];
    uint32_t n = 0;
    for (int i = 0; i < REC_NODES_MAX; i++)
        if (b->cluster.nodes[i].pid > 0 && &b->cluster.nodes[i] != not )
            running[n++] = &b->cluster.nodes[i];
    return running[draw(b, n)];
}

/* Does it; *victim is who, or becomes the joiner. Sets *ret_time. */
static enum dpt_status hurt(struct bench *b, enum rec_fault fault, struct rec_node **victim,
                            double *ret_time, struct dpt_err *err)
{
    struct rec_node *node = *victim;
    pid_t rank = fault == REC_JOIN ? 0 : rec_node_rank(node);
    if (fault == REC_KILL_RANK && rank == 0)
        return dpt_fail(err, DPT_EPEER, "worker %s has no rank to kill", node->id);
    *ret_time = dpt_wall_seconds();
    switch (fault) {
    case REC_KILL_RANK:
        b->rank_victims[b->ranks_killed] = node;
        b->rank_was[b->ranks_killed] = rank;
        b->rank_again[b->ranks_killed++] = 0;
        (void)kill(rank, SIGKILL);
        break;
    case REC_KILL_WORKER:
    case REC_DRAIN:
        node->stops = true;
        b->world--;
        (void)kill(node->pid, fault == REC_DRAIN ? SIGTERM : SIGKILL);
        break;
    case REC_JOIN:
        b->world++;
        return rec_node_start(&b->cluster, victim, err);
    case REC_STOP:
        b->world--;
        (void)kill(node->pid, SIGSTOP);
        if (rank > 0)
            (void)kill(rank, SIGSTOP);
        break;
    case REC_FAULT_COUNT:
        break;
    }
    return DPT_OK;
}

static void plan_trial(struct bench *b, struct rec_trial *t)
{
    static const enum rec_fault faults[] = {
        REC_KILL_RANK,   REC_KILL_RANK,   REC_KILL_RANK,   REC_KILL_RANK,   REC_KILL_RANK,
        REC_KILL_RANK,   REC_KILL_WORKER, REC_KILL_WORKER, REC_KILL_WORKER, REC_KILL_WORKER,
        REC_KILL_WORKER, REC_KILL_WORKER, REC_DRAIN,       REC_DRAIN,       REC_DRAIN,
        REC_JOIN,        REC_JOIN,        REC_JOIN,        REC_STOP,        REC_STOP};
    double load = 0;
    (void)getloadavg(&load, 1);
    *t = (struct rec_trial){.fault = faults[draw(b, sizeof faults / sizeof *faults)],
                            .second = draw(b, 2) ? REC_KILL_RANK : REC_KILL_WORKER,
                            .noticed_ms = NAN,
                            .back_ms = NAN,
                            .step_ms = rec_watch_median_step_ms(&b->watch),
                            .load = load};
    /* One who holds the state must be left. */
    t->doubled = draw(b, 4) == 0 && t->fault != REC_STOP && b->args->nodes > 2;
}

static void remember_survivors(struct bench *b)
{
    b->n_survivors = 0;
    for (int i = 0; i < REC_NODES_MAX; i++) {
        const struct rec_node *node = &b->cluster.nodes[i];
        if (node->pid > 0)
            b->survivors[b->n_survivors++] =
                (struct survivor){node, node->pid, rec_node_rank(node)};
    }
}

static bool survivors_kept(const struct bench *b)
{
    for (int i = 0; i < b->n_survivors; i++) {
        const struct survivor *s = &b->survivors[i];
        if (s->node != b->victim && s->node != b->second_victim &&
            (s->node->pid != s->agent || s->rank == 0 || rec_node_rank(s->node) != s->rank))
            return false;
    }
    return true;
}

static void take_figures(struct bench *b, double fault_time)
{
    struct rec_trial *t = b->trial;
    t->generation = *rec_watch_generation(&b->watch, b->resumed);
    t->resumed_ms = (t->generation.first_step - fault_time) * 1e3;
    t->pause_ms = (t->generation.first_step - t->generation.step_before) * 1e3;
    const struct rec_generation *first = rec_watch_generation(&b->watch, b->from + 1);
    if (!t->doubled && first && first->forming > 0)
        t->noticed_ms = (first->forming - fault_time) * 1e3;
    t->measured = true;
}

static enum dpt_status take_exit(struct bench *b, struct rec_node *node, bool drained,
                                 bool (*ended)(struct bench *), struct dpt_err *err)
{
    int status = 0;
    char id[sizeof node->id];
    memcpy(id, node->id, sizeof id);
    DPT_TRY(wait_for(b, "the worker that was told to end, or killed, ends", ended, err));
    (void)rec_node_gone(node, &status);
    if (drained && status != 0)
        return dpt_fail(err, DPT_EPEER, "worker %s was told to leave and ended with status 0x%x",
                        id, status);
    return DPT_OK;
}

/* Back to the number of nodes that there were: who died is replaced, who was stopped continues, and
 * after a join somebody goes. */
static enum dpt_status restore_nodes(struct bench *b, struct dpt_err *err)
{
    const struct rec_trial *t = b->trial;
    if (t->fault == REC_KILL_WORKER || t->fault == REC_DRAIN)
        DPT_TRY(take_exit(b, b->victim, t->fault == REC_DRAIN, victim_ended, err));
    if (t->doubled && t->second == REC_KILL_WORKER)
        DPT_TRY(take_exit(b, b->second_victim, false, second_victim_ended, err));
    if (t->fault == REC_STOP) {
        pid_t rank = rec_node_rank(b->victim);
        if (rank > 0)
            (void)kill(rank, SIGCONT);
        (void)kill(b->victim->pid, SIGCONT);
        b->world++;
    }
    double time;
    while (b->world < b->args->nodes) {
        struct rec_node *joiner = NULL;
        DPT_TRY(hurt(b, REC_JOIN, &joiner, &time, err));
    }
    if (b->world == b->args->nodes)
        return wait_for(b, "all nodes train again", steady, err);
    b->victim = draw_node(b, NULL);
    DPT_TRY(hurt(b, REC_DRAIN, &b->victim, &time, err));
    DPT_TRY(take_exit(b, b->victim, true, victim_ended, err));
    return wait_for(b, "the others train after one left", steady, err);
}

static enum dpt_status run_trial(struct bench *b, struct dpt_err *err)
{
    struct rec_trial *t = b->trial;
    double first_time, time;
    int64_t lost_before = b->watch.steps_lost;
    plan_trial(b, t);
    b->ranks_killed = 0;
    b->victim = t->fault == REC_JOIN ? NULL : draw_node(b, NULL);
    b->second_victim = NULL;
    remember_survivors(b);
    DPT_TRY(wait_drawn(b, t->step_ms * draw(b, 1000) / 1000, err));
    b->from = b->watch.newest;
    DPT_TRY(hurt(b, t->fault, &b->victim, &first_time, err));
    time = first_time;
    if (t->doubled) {
        DPT_TRY(wait_for(b, "the next generation begins to form", forms, err));
        DPT_TRY(wait_drawn(b, draw(b, SECOND_MS * 1000) / 1e3, err));
        b->from = b->watch.newest;
        b->second_victim = draw_node(b, t->fault == REC_JOIN ? NULL : b->victim);
        DPT_TRY(hurt(b, t->second, &b->second_victim, &time, err));
    }
    DPT_TRY(wait_for(b, "a step of the next generation, without what died", resumed, err));
    take_figures(b, time);
    DPT_TRY(wait_for(b, "everybody who is left trains", steady, err));
    t->survivors_kept = survivors_kept(b);
    DPT_TRY(restore_nodes(b, err));
    t->back_ms = (dpt_wall_seconds() - first_time) * 1e3;
    t->steps_lost = b->watch.steps_lost - lost_before;
    return DPT_OK;
}

/* ---- the run ---- */

static void print_trial(const struct bench *b, const struct rec_trial *t)
{
    printf(
        "%3d %-11s%s%s: generation %llu (%s), detect %.0f, total %.0f; paused %.0f ms, next step "
        "%.0f ms after the fault%s; all back after %.0f ms\n",
        b->n_trials, rec_fault_names[t->fault], t->doubled ? ", then " : "",
        t->doubled ? rec_fault_names[t->second] : "", (unsigned long long)t->generation.number,
        t->generation.kind, t->generation.phase_ms[REC_DETECT], t->generation.phase_ms[REC_TOTAL],
        t->pause_ms, t->resumed_ms, t->survivors_kept ? "" : "; SURVIVORS RESTARTED", t->back_ms);
    (void)fflush(stdout);
}

static enum dpt_status run_trials(struct bench *b, struct dpt_err *err)
{
    const struct rec_run run = {.nodes_max = b->args->nodes + 1,
                                .n_embd = b->args->n_embd,
                                .timeout_s = b->args->timeout_s};
    DPT_TRY(rec_cluster_create(&run, &b->cluster, err));
    DPT_TRY(rec_watch_init(&b->watch, b->cluster.dir, err));
    DPT_TRY(rec_server_start(&b->cluster, err));
    DPT_TRY(wait_for(b, "the server listens", listens, err));
    for (; b->world < b->args->nodes; b->world++) {
        struct rec_node *node;
        DPT_TRY(rec_node_start(&b->cluster, &node, err));
    }
    DPT_TRY(wait_for(b, "all nodes train", steady, err));
    printf("%d workers, timeout %g s, %.1f ms a step; seed %llu\n", b->args->nodes,
           b->args->timeout_s, rec_watch_median_step_ms(&b->watch),
           (unsigned long long)b->args->seed);
    while (b->n_trials < b->args->trials) {
        b->trial = &b->trials[b->n_trials++];
        DPT_TRY(run_trial(b, err));
        print_trial(b, b->trial);
    }
    return rec_cluster_end(&b->cluster, err);
}

static int report(const struct bench *b, struct rec_totals *totals)
{
    totals->nodes = b->args->nodes;
    totals->n_embd = b->args->n_embd;
    totals->trials_wanted = b->args->trials;
    totals->timeout_s = b->args->timeout_s;
    totals->seed = b->args->seed;
    totals->trials = b->n_trials;
    totals->hangs = b->hangs;
    totals->generations = b->watch.newest;
    totals->steps = b->watch.step;
    totals->steps_lost = b->watch.steps_lost;
    totals->steps_repeated = b->watch.steps_repeated;
    for (int i = 0; i < b->n_trials; i++)
        totals->survivors_changed += b->trials[i].measured && !b->trials[i].survivors_kept;
    (void)getloadavg(&totals->load_after, 1);
    rec_report_print(b->trials, totals);
    int code = dpt_bench_finish(&(struct dpt_bench_args){.json = b->args->json},
                                rec_report_json(b->trials, totals));
    bool good = totals->clean && totals->hangs == 0 && totals->steps_lost == 0 &&
                totals->steps_repeated == 0 && totals->survivors_changed == 0;
    return good ? code : 1;
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

static bool parse(int argc, char **argv, struct arguments *a)
{
    double trials = 40, nodes = 3, seed = 1, n_embd = 64;
    *a = (struct arguments){.timeout_s = 5};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true;
        if (strcmp(argv[i], "--keep") == 0) {
            a->keep = true;
            continue;
        }
        if (strcmp(argv[i], "--trials") == 0)
            ok = take_number(value, 1, TRIALS_MAX, &trials);
        else if (strcmp(argv[i], "--nodes") == 0)
            ok = take_number(value, 2, 8, &nodes);
        else if (strcmp(argv[i], "--seed") == 0)
            ok = take_number(value, 0, 9e15, &seed);
        else if (strcmp(argv[i], "--timeout-s") == 0)
            ok = take_number(value, 0.2, 600, &a->timeout_s);
        else if (strcmp(argv[i], "--n-embd") == 0)
            ok = take_number(value, 4, 4096, &n_embd) && (int)n_embd % 4 == 0;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else
            ok = false;
        if (!ok || !*value) {
            (void)fprintf(stderr,
                          "usage: dpt-bench recover [--trials 40] [--seed 1] [--nodes 3] "
                          "[--timeout-s 5] [--n-embd 64] [--json FILE] [--keep]\n"
                          "  nodes: 2 to 8 workers; timeout-s: cluster.timeout_s; n-embd: width of "
                          "the GPT-2 of 2 blocks, a multiple of 4; keep: leave the temporary "
                          "folder\n");
            return false;
        }
        i++;
    }
    a->trials = (int)trials;
    a->nodes = (int)nodes;
    a->n_embd = (int)n_embd;
    a->seed = (uint64_t)seed;
    return true;
}

static int run(int argc, char **argv)
{
    struct arguments args;
    struct rec_totals totals = {0};
    struct dpt_err err;
    if (!parse(argc, argv, &args))
        return 2;
    struct sigaction action = {.sa_handler = on_signal};
    if (sigaction(SIGINT, &action, NULL) != 0 || sigaction(SIGTERM, &action, NULL) != 0 ||
        sigaction(SIGHUP, &action, NULL) != 0) {
        perror("dpt-bench recover: signals");
        return 1;
    }
    struct bench *b = calloc(1, sizeof *b);
    DPT_ASSERT(b);
    b->args = &args;
    b->trials = calloc((size_t)args.trials, sizeof *b->trials);
    DPT_ASSERT(b->trials);
    (void)getloadavg(&totals.load_before, 1);
    enum dpt_status status = run_trials(b, &err);
    totals.clean = status == DPT_OK;
    if (status != DPT_OK) {
        b->hangs += status == DPT_ETIMEOUT;
        (void)fprintf(stderr, "dpt-bench recover: trial %d: %s\n", b->n_trials, err.text);
        if (status != DPT_EABORTED)
            rec_cluster_tell(&b->cluster);
    }
    rec_cluster_destroy(&b->cluster, args.keep);
    int code = report(b, &totals);
    rec_watch_fini(&b->watch);
    free(b->trials);
    free(b);
    return code;
}

const struct dpt_bench dpt_bench_recover = {
    .name = "recover",
    .help = "what a failure costs: kills, drains, joins in a real run",
    .run = run};
