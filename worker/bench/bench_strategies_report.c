/* Computes the figures over all runs of `dpt-bench strategies`; prints the table and the JSON. */
#include "worker/bench/bench_strategies.h"

#include "base/median.h"
#include "base/strategy_traits.h"
#include "worker/bench/bench.h"
#include "worker/model/model.h"

#include <string.h>

static const char *const orders[] = {
    [DPT_ACCUMULATE_LOCAL] = "local", [DPT_ACCUMULATE_REDUCE] = "reduce"};

static void conclude_strategy(const struct strategies_bench *b, struct strategies_strategy *s)
{
    static double all[ST_ROUNDS_MAX * ST_STEPS_MAX];
    double shares[ST_ROUNDS_MAX], sent[ST_ROUNDS_MAX];
    int n = 0;
    s->one_hash = true;
    for (int i = 0; i < s->n_runs; i++) {
        struct measured *run = &s->runs[i];
        memcpy(all + n, run->step_ms, (size_t)run->n * sizeof *all);
        n += run->n;
        const double ms = dpt_median(run->step_ms, run->n);
        if (i == 0 || ms < s->step_ms_best)
            s->step_ms_best = ms;
        if (i == 0 || ms > s->step_ms_worst)
            s->step_ms_worst = ms;
        shares[i] = run->wait_share;
        sent[i] = (double)run->sent_bytes;
        s->sends_bytes = run->sends_bytes;
        if (run->held_bytes > s->held_bytes) {
            s->held_bytes = run->held_bytes;
            s->holds_bytes = run->holds_bytes;
        }
        if (run->peak_bytes > s->peak_bytes)
            s->peak_bytes = run->peak_bytes;
        s->one_hash = s->one_hash && strcmp(run->hash, s->runs[0].hash) == 0;
    }
    s->step_ms = dpt_median(all, n);
    s->wait_share = dpt_median(shares, s->n_runs);
    s->sent_bytes = (int64_t)dpt_median(sent, s->n_runs);
    s->tokens_per_s = (double)(b->args.global_batch * b->args.seq_len) * 1e3 / s->step_ms;
}

void strategies_conclude(struct strategies_bench *b)
{
    for (int i = 0; i < b->n; i++)
        conclude_strategy(b, &b->strategies[i]);
}

bool strategies_one_hash(const struct strategies_bench *b, enum dpt_accumulate order)
{
    const char *first = NULL;
    for (int i = 0; i < b->n; i++) {
        const struct strategies_strategy *s = &b->strategies[i];
        if (dpt_strategy_traits(&s->config).order != order)
            continue;
        if (!s->one_hash || (first && strcmp(first, s->runs[0].hash) != 0))
            return false;
        first = s->runs[0].hash;
    }
    return true;
}

void strategies_print(const struct strategies_bench *b)
{
    const struct strategies_args *a = &b->args;
    const double mib = 1024.0 * 1024.0;
    printf("%.2f M parameters, %s, %d ranks on %d host%s, %d samples of %d tokens a step in "
           "micro-batches of %d; %d runs of %d steps each\n"
           "2 (N-1)/N D = %.2f MiB; load of the machine %.1f before, %.1f after\n\n",
           (double)b->parameters * 1e-6, a->precision, (int)a->ranks, (int)a->hosts,
           a->hosts > 1 ? "s" : "", (int)a->global_batch, (int)a->seq_len, (int)a->micro_batch,
           (int)a->rounds, (int)a->steps,
           2.0 * (double)(a->ranks - 1) / (double)a->ranks * 4 * (double)b->parameters / mib,
           b->load_before, b->load_after);
    printf("%-14s %-6s %5s %9s %17s %9s %7s %9s %9s %9s %9s %9s  %s\n", "strategy", "order",
           "nodes", "step ms", "runs", "tokens/s", "waits", "sent MiB", "formula", "held MiB",
           "formula", "process", "weights_hash");
    for (int i = 0; i < b->n; i++) {
        const struct strategies_strategy *s = &b->strategies[i];
        char runs[32];
        (void)snprintf(runs, sizeof runs, "%.1f … %.1f", s->step_ms_best, s->step_ms_worst);
        printf("%-14s %-6s %5d %9.1f %19s %9.0f %6.1f%% %9.2f %9.2f %9.1f %9.1f %9.1f  %.16s%s\n",
               s->label, orders[dpt_strategy_traits(&s->config).order], s->nodes, s->step_ms, runs,
               s->tokens_per_s, 100 * s->wait_share, (double)s->sent_bytes / mib,
               (double)s->sends_bytes / mib, (double)s->held_bytes / mib,
               (double)s->holds_bytes / mib, (double)s->peak_bytes / mib, s->runs[0].hash,
               s->one_hash ? "" : " NOT of all its runs");
    }
    printf(
        "\nwaits: share of a step in which the main thread waits for communication; sent: bytes of "
        "a step, counted by the communicator, with the commit; held: the peak of the rank's "
        "account of its memory, beside the formula; process: the peak of the process (VmHWM)\n");
    for (int order = DPT_ACCUMULATE_LOCAL; order <= DPT_ACCUMULATE_REDUCE; order++)
        if (!strategies_one_hash(b, order))
            printf("order %s: NOT one hash\n", orders[order]);
}

static json_t *strategy_json(const struct strategies_strategy *s)
{
    return json_pack(
        "{s:s, s:s, s:s?, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, "
        "s:f, s:s, s:b}",
        "strategy", s->label, "name", s->name, "sharding", s->sharding[0] ? s->sharding : NULL,
        "accumulate", orders[dpt_strategy_traits(&s->config).order], "nodes", s->nodes, "runs",
        s->n_runs, "step_ms", s->step_ms, "step_ms_best_run", s->step_ms_best, "step_ms_worst_run",
        s->step_ms_worst, "tokens_per_s", s->tokens_per_s, "wait_share", s->wait_share,
        "sent_bytes", (json_int_t)s->sent_bytes, "sent_bytes_formula", (json_int_t)s->sends_bytes,
        "held_bytes", (json_int_t)s->held_bytes, "held_bytes_formula", (json_int_t)s->holds_bytes,
        "peak_bytes_per_rank", (json_int_t)s->peak_bytes, "loss", s->runs[0].loss, "weights_hash",
        s->runs[0].hash, "one_hash", s->one_hash);
}

json_t *strategies_json(const struct strategies_bench *b)
{
    const struct strategies_args *a = &b->args;
    json_t *rows = json_array();
    for (int i = 0; i < b->n; i++)
        (void)json_array_append_new(rows, strategy_json(&b->strategies[i]));
    return json_pack("{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:f, s:f, "
                     "s:o}",
                     "bench", "strategies", "parameters", (json_int_t)b->parameters, "model",
                     a->model, "precision", a->precision, "ranks", (json_int_t)a->ranks, "hosts",
                     (json_int_t)a->hosts, "rounds", (json_int_t)a->rounds, "steps",
                     (json_int_t)a->steps, "global_batch", (json_int_t)a->global_batch,
                     "micro_batch", (json_int_t)a->micro_batch, "seq_len", (json_int_t)a->seq_len,
                     "one_hash_local", strategies_one_hash(b, DPT_ACCUMULATE_LOCAL),
                     "one_hash_reduce", strategies_one_hash(b, DPT_ACCUMULATE_REDUCE),
                     "load_before", b->load_before, "load_after", b->load_after, "rows", rows);
}
