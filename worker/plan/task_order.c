/* Orders the tasks of a list (task_order.h). */
#include "worker/plan/task_order.h"

#include <stdlib.h>
#include <string.h>

enum { SHARE_LAG = 2 };

struct order {
    struct dpt_step_list *list;
    const struct dpt_step_spec *spec;
    int n_waves;
};

/* Tasks have moved: task i is now at now_at[i]. */
static void follow_tasks(struct order *m, const int *now_at)
{
    for (int a = 0; a < m->list->n_actions; a++)
        if (m->list->actions[a].n_tasks > 0)
            m->list->actions[a].first_task = now_at[m->list->actions[a].first_task];
}

/* Sorts tasks by the number of actions that they wait for. */
static void order_tasks(struct order *m, struct dpt_task *sorted, int *now_at)
{
    /* A counting sort, which is stable; `actions` is at most n_actions. */
    int *first = now_at + m->list->n_tasks;
    memset(first, 0, ((size_t)m->list->n_actions + 2) * sizeof *first);
    for (int i = 0; i < m->list->n_tasks; i++)
        first[m->list->tasks[i].actions + 1]++;
    for (int a = 0; a <= m->list->n_actions; a++)
        first[a + 1] += first[a];
    for (int i = 0; i < m->list->n_tasks; i++) {
        now_at[i] = first[m->list->tasks[i].actions]++;
        sorted[now_at[i]] = m->list->tasks[i];
    }
    follow_tasks(m, now_at);
}

/* A range whose last scatter is posted. After that scatter two tasks of earlier ranges follow: the
 * CROSS of the range before, whose sum is complete by then, and the SHARE of the range SHARE_LAG
 * before that one. So no rank waits for another node's sums before the next scatter is posted. If
 * the main thread waits for the range, the range's own SHARE follows at once. */
struct tail {
    int unit, wave, scatters, crosses;
};

static void add_cross(struct order *m, struct tail *tail, int *crosses)
{
    const int parts = m->spec->cross_parts ? m->spec->cross_parts[tail->unit] : 0;
    for (int part = 0; part < parts; part++)
        m->list->tasks[m->list->n_tasks++] = (struct dpt_task){.kind = DPT_TASK_CROSS,
                                                               .unit = tail->unit,
                                                               .wave = tail->wave,
                                                               .buffer = -1,
                                                               .part = part,
                                                               .n_parts = parts,
                                                               .scatters = tail->scatters};
    *crosses += parts;
    tail->crosses = *crosses;
}

static void add_share(struct order *m, const struct tail *tail)
{
    if (m->spec->share)
        m->list->tasks[m->list->n_tasks++] = (struct dpt_task){.kind = DPT_TASK_SHARE,
                                                               .unit = tail->unit,
                                                               .wave = tail->wave,
                                                               .buffer = -1,
                                                               .scatters = tail->scatters,
                                                               .crosses = tail->crosses};
}

/* Copies the ordered tasks, and inserts the tasks that follow the scatters of the last wave. */
static void insert_tails(struct order *m, const struct dpt_task *sorted, int *now_at,
                         struct tail *tails)
{
    const int lag = m->spec->cross_parts ? SHARE_LAG : 0, n_sorted = m->list->n_tasks;
    int scatters = 0, crosses = 0, n_tails = 0;
    m->list->n_tasks = 0;
    for (int i = 0; i < n_sorted; i++) {
        const struct dpt_task *t = &sorted[i];
        now_at[i] = m->list->n_tasks;
        m->list->tasks[m->list->n_tasks++] = *t;
        scatters += t->kind == DPT_TASK_SCATTER;
        if (t->kind != DPT_TASK_SCATTER || t->part < t->n_parts - 1 ||
            (t->wave < m->n_waves - 1 && !m->spec->buckets.each_slot))
            continue;
        const struct tail tail = {.unit = t->unit, .wave = t->wave, .scatters = scatters};
        if (m->spec->n_buckets > 0 && m->spec->buckets.waits) {
            add_share(m, &tail);
            continue;
        }
        tails[n_tails++] = tail;
        if (n_tails > 1)
            add_cross(m, &tails[n_tails - 2], &crosses);
        if (n_tails > 1 + lag)
            add_share(m, &tails[n_tails - 2 - lag]);
    }
    if (n_tails > 0)
        add_cross(m, &tails[n_tails - 1], &crosses);
    for (int i = n_tails > 1 + lag ? n_tails - 1 - lag : 0; i < n_tails; i++)
        add_share(m, &tails[i]);
    follow_tasks(m, now_at);
}

/* If this member has no slot in the last wave: removes the wave's actions and marks its tasks as
 * idle. */
static void leave_out(struct order *m)
{
    const struct dpt_step_spec *spec = m->spec;
    if (!spec->waves || spec->assignment.n == m->n_waves)
        return;
    int n = 0;
    for (int i = 0; i < m->list->n_actions; i++)
        if (m->list->actions[i].slot < dpt_assignment_end(&spec->assignment))
            m->list->actions[n++] = m->list->actions[i];
    m->list->n_actions = n;
    for (int i = 0; i < m->list->n_tasks; i++)
        if (m->list->tasks[i].wave >= spec->assignment.n &&
            (m->list->tasks[i].kind == DPT_TASK_GATHER ||
             m->list->tasks[i].kind == DPT_TASK_SCATTER)) {
            m->list->tasks[i].idle = true;
            m->list->tasks[i].actions = 0;
        }
}

bool dpt_task_order(struct dpt_step_list *list, const struct dpt_step_spec *spec, int n_waves)
{
    struct order m = {list, spec, n_waves};
    const size_t tasks = (size_t)list->n_tasks + 1, actions = (size_t)list->n_actions;
    struct dpt_task *sorted = calloc(tasks, sizeof *sorted);
    int *now_at = calloc(tasks + actions + 2, sizeof *now_at);
    struct tail *tails = calloc(tasks, sizeof *tails);
    const bool made = sorted && now_at && tails;
    if (made) {
        order_tasks(&m, sorted, now_at);
        insert_tails(&m, sorted, now_at, tails);
        leave_out(&m);
    }
    free(sorted);
    free(now_at);
    free(tails);
    return made;
}
