/* The lists of a step (schedule.h). */
#include "worker/plan/schedule.h"

#include <stdlib.h>
#include <string.h>

enum { GRADIENT_BUFFERS = 2, SHARE_LAG = 2, NO_UNIT = -1 };

/* A list being made. It is that of member 0, which has a slot in every wave; what another member
 * has not is taken out at the end. */
struct maker {
    const struct dpt_step_spec *spec;
    struct dpt_action *actions;
    int n_actions;
    struct dpt_task *tasks;
    int n_tasks;
    int wave, n_waves;
    int last_use; /* actions done when the last use of weights was over */

    /* UNITS: the shared buffers. */
    struct buffer {
        int unit;
        int freed; /* actions done when it was free again */
        int used;  /* number of the use */
    } * buffers;
    int uses;   /* of shared units so far */
    bool *here; /* [n_units] gathered in a place of its own */

    /* Gradients. */
    int turn;          /* of the shared buffers */
    int *scattered_by; /* [gradient buffers] first task of the last scatter out of it; -1: none */
    int *scatter_parts;
    int *place; /* [n_units] gradient buffer of the present slot */
};

int dpt_step_own_buffer(const struct dpt_step_spec *spec, int unit)
{
    int index = 0;
    for (int u = 0; u < spec->n_units; u++) {
        bool borrowed = false;
        for (int by = 0; by < spec->n_units; by++)
            borrowed = borrowed || spec->borrows[by] == u;
        if (u == unit)
            return borrowed ? index : -1;
        index += borrowed;
    }
    return -1;
}

static int own_buffers(const struct dpt_step_spec *spec)
{
    int n = 0;
    for (int u = 0; u < spec->n_units; u++)
        n += dpt_step_own_buffer(spec, u) >= 0;
    return n;
}

int dpt_step_weight_buffers(const struct dpt_step_spec *spec, int *ret_own)
{
    *ret_own = spec->weights == DPT_WEIGHTS_UNITS ? own_buffers(spec) : 0;
    return spec->weights == DPT_WEIGHTS_UNITS ? *ret_own + spec->gathered_max : 0;
}

int dpt_step_gradient_buffers(const struct dpt_step_spec *spec, int *ret_own)
{
    *ret_own = spec->waves ? own_buffers(spec) : 0;
    return spec->waves ? *ret_own + GRADIENT_BUFFERS : 0;
}

static struct dpt_action *add_action(struct maker *m, enum dpt_action_kind kind, int unit)
{
    struct dpt_action *a = &m->actions[m->n_actions++];
    const struct dpt_assignment *assignment = &m->spec->assignment;
    *a = (struct dpt_action){
        .kind = kind,
        .unit = unit,
        .slot = m->spec->forward_only ? -1 : assignment->first + m->wave * assignment->stride,
        .buffer = -1};
    return a;
}

static void add_task(struct maker *m, struct dpt_task task)
{
    task.wave = m->wave;
    m->tasks[m->n_tasks++] = task;
}

/* Into a place that is free when so many actions are done. */
static void gather(struct maker *m, int unit, int buffer, int actions)
{
    struct dpt_action *a = add_action(m, DPT_ACTION_GATHER, unit);
    a->buffer = buffer;
    a->first_task = m->n_tasks;
    a->n_tasks = 1;
    if (!m->spec->prefetch && actions < m->last_use)
        actions = m->last_use;
    add_task(m, (struct dpt_task){
                    .kind = DPT_TASK_GATHER, .unit = unit, .buffer = buffer, .actions = actions});
}

/* The unit of a slot's use number `use` of shared units, forward and then backward. */
static int unit_of_use(const struct maker *m, int use)
{
    const int n = m->spec->n_units, per_slot = m->spec->forward_only ? n : 2 * n;
    const int at = use % per_slot;
    return at < n ? at : 2 * n - 1 - at;
}

/* Uses until the unit is wanted again. */
static int next_use(const struct maker *m, int unit, int from)
{
    int ahead = 1;
    while (ahead <= 4 * m->spec->n_units && unit_of_use(m, from + ahead) != unit)
        ahead++;
    return ahead;
}

/* The shared buffer that is given to the next unit: of those that the use before does not need, so
 * that it can be filled meanwhile, the one whose unit is wanted last (Belady's rule). */
static int choose_buffer(const struct maker *m, int own)
{
    const int n = m->spec->gathered_max;
    int best = -1, best_next = -1;
    for (int b = 0; b < n; b++) {
        const struct buffer *buffer = &m->buffers[b];
        if (buffer->unit == NO_UNIT)
            return own + b;
        if (n > 1 && buffer->used == m->uses - 1)
            continue;
        const int next = next_use(m, buffer->unit, m->uses);
        if (next > best_next) {
            best = b;
            best_next = next;
        }
    }
    return own + best;
}

static void use_shared(struct maker *m, int unit)
{
    int own, found = -1;
    (void)dpt_step_weight_buffers(m->spec, &own);
    for (int b = 0; b < m->spec->gathered_max; b++)
        if (m->buffers[b].unit == unit)
            found = b;
    if (found < 0) {
        const int index = choose_buffer(m, own);
        found = index - own;
        gather(m, unit, index, m->buffers[found].freed);
        m->buffers[found].unit = unit;
    }
    m->buffers[found].used = m->uses;
}

/* Before unit `unit` is computed: its weights, and those that it borrows. */
static void need_weights(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    const int needed[] = {spec->borrows[unit], unit};
    if (spec->weights == DPT_WEIGHTS_HELD)
        return;
    for (int i = 0; i < 2; i++) {
        if (needed[i] < 0)
            continue;
        const int own = dpt_step_own_buffer(spec, needed[i]);
        if (spec->weights == DPT_WEIGHTS_UNITS && own < 0) {
            use_shared(m, needed[i]);
        } else if (!m->here[needed[i]]) {
            gather(m, needed[i], spec->weights == DPT_WEIGHTS_UNITS ? own : -1, 0);
            m->here[needed[i]] = true;
        }
    }
}

static void free_weights(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    /* What is kept is not freed, but without prefetch the next unit is gathered from here on. */
    if (spec->weights == DPT_WEIGHTS_UNITS ||
        (spec->weights == DPT_WEIGHTS_ONCE && !spec->prefetch)) {
        (void)add_action(m, DPT_ACTION_FREE, unit);
        for (int b = 0; b < spec->gathered_max; b++)
            if (m->buffers[b].unit == unit)
                m->buffers[b].freed = m->n_actions;
    }
    m->last_use = m->n_actions;
    m->uses++;
}

/* Before the first backward that writes a unit's gradient. */
static void reserve(struct maker *m, int unit)
{
    int own;
    (void)dpt_step_gradient_buffers(m->spec, &own);
    int buffer = dpt_step_own_buffer(m->spec, unit);
    if (buffer < 0)
        buffer = own + m->turn++ % GRADIENT_BUFFERS;
    m->place[unit] = buffer;
    struct dpt_action *a = add_action(m, DPT_ACTION_RESERVE, unit);
    a->buffer = buffer;
    a->first_task = m->scattered_by[buffer];
    a->n_tasks = m->scattered_by[buffer] < 0 ? 0 : m->scatter_parts[buffer];
}

static void scatter(struct maker *m, int unit)
{
    const int buffer = m->place[unit];
    struct dpt_action *a = add_action(m, DPT_ACTION_REDUCE, unit);
    if (!m->spec->overlap) {
        a->first_task = m->n_tasks;
        a->n_tasks = m->spec->parts[unit];
    }
    m->scattered_by[buffer] = m->n_tasks;
    m->scatter_parts[buffer] = m->spec->parts[unit];
    for (int part = 0; part < m->spec->parts[unit]; part++)
        add_task(m, (struct dpt_task){.kind = DPT_TASK_SCATTER,
                                      .unit = unit,
                                      .buffer = buffer,
                                      .part = part,
                                      .n_parts = m->spec->parts[unit],
                                      .actions = m->n_actions});
    m->place[unit] = -1;
}

static void backward(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    need_weights(m, unit);
    if (spec->waves && spec->borrows[unit] >= 0 && m->place[spec->borrows[unit]] < 0)
        reserve(m, spec->borrows[unit]);
    if (spec->waves && m->place[unit] < 0)
        reserve(m, unit);
    (void)add_action(m, DPT_ACTION_BACKWARD, unit);
    free_weights(m, unit);
    if (spec->waves)
        scatter(m, unit);
}

/* Between forward and backward, which no copy keeps waiting. */
static void copy_state(struct maker *m)
{
    for (int unit = 0; unit < m->spec->n_units; unit++)
        for (int v = 0; v < m->spec->copies; v++)
            add_task(m, (struct dpt_task){.kind = DPT_TASK_COPY,
                                          .unit = unit,
                                          .buffer = -1,
                                          .part = v,
                                          .n_parts = m->spec->copies,
                                          .actions = m->n_actions});
}

static void make_slot(struct maker *m)
{
    const int n = m->spec->n_units;
    (void)add_action(m, DPT_ACTION_BEGIN_SLOT, -1);
    for (int unit = 0; unit < n; unit++) {
        need_weights(m, unit);
        (void)add_action(m, DPT_ACTION_FORWARD, unit);
        free_weights(m, unit);
    }
    if (m->wave == 0 && !m->spec->forward_only)
        copy_state(m);
    for (int unit = n - 1; unit >= 0 && !m->spec->forward_only; unit--)
        backward(m, unit);
    (void)add_action(m, DPT_ACTION_END_SLOT, -1);
}

/* Brings tasks into the order of what they wait for, and the actions' names of them along. */
static void order_tasks(struct maker *m, struct dpt_task *sorted, int *now_at)
{
    /* By counting: `actions` is at most n_actions. Stable. */
    int *first = now_at + m->n_tasks;
    memset(first, 0, ((size_t)m->n_actions + 2) * sizeof *first);
    for (int i = 0; i < m->n_tasks; i++)
        first[m->tasks[i].actions + 1]++;
    for (int a = 0; a <= m->n_actions; a++)
        first[a + 1] += first[a];
    for (int i = 0; i < m->n_tasks; i++) {
        now_at[i] = first[m->tasks[i].actions]++;
        sorted[now_at[i]] = m->tasks[i];
    }
    for (int a = 0; a < m->n_actions; a++)
        if (m->actions[a].n_tasks > 0)
            m->actions[a].first_task = now_at[m->actions[a].first_task];
}

/* Behind the scatter of a unit of the last wave come, of units before it: the CROSS of the last
 * one, which has been summed by then, and the SHARE of one SHARE_LAG before that, so that nobody
 * waits for another node's sums with the next scatter unposted. */
struct tail {
    int unit, scatters, crosses;
};

static void add_cross(struct maker *m, struct tail *tail, int *crosses)
{
    const int parts = m->spec->cross_parts ? m->spec->cross_parts[tail->unit] : 0;
    for (int part = 0; part < parts; part++)
        m->tasks[m->n_tasks++] = (struct dpt_task){.kind = DPT_TASK_CROSS,
                                                   .unit = tail->unit,
                                                   .wave = m->n_waves - 1,
                                                   .buffer = -1,
                                                   .part = part,
                                                   .n_parts = parts,
                                                   .scatters = tail->scatters};
    *crosses += parts;
    tail->crosses = *crosses;
}

static void add_share(struct maker *m, const struct tail *tail)
{
    if (m->spec->share)
        m->tasks[m->n_tasks++] = (struct dpt_task){.kind = DPT_TASK_SHARE,
                                                   .unit = tail->unit,
                                                   .wave = m->n_waves - 1,
                                                   .buffer = -1,
                                                   .scatters = tail->scatters,
                                                   .crosses = tail->crosses};
}

/* Copies the ordered tasks, with what follows the last wave's scatters between them. Gives the
 * actions' names of tasks the new places. */
static void insert_tails(struct maker *m, const struct dpt_task *sorted, int *now_at,
                         struct tail *tails)
{
    const int lag = m->spec->cross_parts ? SHARE_LAG : 0, n_sorted = m->n_tasks;
    int scatters = 0, crosses = 0, n_tails = 0;
    m->n_tasks = 0;
    for (int i = 0; i < n_sorted; i++) {
        const struct dpt_task *t = &sorted[i];
        now_at[i] = m->n_tasks;
        m->tasks[m->n_tasks++] = *t;
        scatters += t->kind == DPT_TASK_SCATTER;
        if (t->kind != DPT_TASK_SCATTER || t->wave < m->n_waves - 1 || t->part < t->n_parts - 1)
            continue;
        tails[n_tails++] = (struct tail){.unit = t->unit, .scatters = scatters};
        if (n_tails > 1)
            add_cross(m, &tails[n_tails - 2], &crosses);
        if (n_tails > 1 + lag)
            add_share(m, &tails[n_tails - 2 - lag]);
    }
    if (n_tails > 0)
        add_cross(m, &tails[n_tails - 1], &crosses);
    for (int i = n_tails > 1 + lag ? n_tails - 1 - lag : 0; i < n_tails; i++)
        add_share(m, &tails[i]);
    for (int a = 0; a < m->n_actions; a++)
        if (m->actions[a].n_tasks > 0)
            m->actions[a].first_task = now_at[m->actions[a].first_task];
}

/* Takes out what a member without a slot in the last wave has not. */
static void leave_out(struct maker *m)
{
    const struct dpt_step_spec *spec = m->spec;
    if (!spec->waves || spec->assignment.n == m->n_waves)
        return;
    const int per_slot = m->n_actions; /* at most */
    int n = 0;
    for (int i = 0; i < per_slot; i++)
        if (m->actions[i].slot < dpt_assignment_end(&spec->assignment))
            m->actions[n++] = m->actions[i];
    m->n_actions = n;
    for (int i = 0; i < m->n_tasks; i++)
        if (m->tasks[i].wave >= spec->assignment.n &&
            (m->tasks[i].kind == DPT_TASK_GATHER || m->tasks[i].kind == DPT_TASK_SCATTER)) {
            m->tasks[i].idle = true;
            m->tasks[i].actions = 0;
        }
}

static int parts_of(const struct dpt_step_spec *spec)
{
    int n = 0;
    for (int u = 0; spec->waves && u < spec->n_units; u++)
        n += spec->parts[u] + (spec->cross_parts ? spec->cross_parts[u] : 0);
    return n;
}

/* Memory for the list and for making it. */
struct room {
    struct dpt_task *sorted;
    int *now_at, *table;
    struct tail *tails;
};

static void free_room(struct maker *m, struct room *room)
{
    free(room->sorted);
    free(room->now_at);
    free(room->table);
    free(room->tails);
    free(m->buffers);
    free(m->here);
}

static bool make_room(struct maker *m, struct room *room)
{
    const struct dpt_step_spec *spec = m->spec;
    const size_t units = (size_t)spec->n_units, waves = (size_t)m->n_waves;
    /* Beside a use of a unit there are at most: GATHER twice, RESERVE twice, FREE, REDUCE. */
    const size_t actions_max = waves * (2 + 2 * units * 7);
    const size_t tasks_max =
        waves * (4 * units + (size_t)parts_of(spec)) + units + units * (size_t)spec->copies;
    int own;
    const int gradients = dpt_step_gradient_buffers(spec, &own);
    const size_t table = 2 * (size_t)gradients + units;
    m->actions = calloc(actions_max, sizeof *m->actions);
    m->tasks = calloc(tasks_max, sizeof *m->tasks);
    room->sorted = calloc(tasks_max, sizeof *room->sorted);
    room->now_at = calloc(tasks_max + actions_max + 2, sizeof *room->now_at);
    m->buffers = calloc((size_t)spec->gathered_max + 1, sizeof *m->buffers);
    m->here = calloc(units, sizeof *m->here);
    room->table = malloc(table * sizeof *room->table);
    room->tails = calloc(units, sizeof *room->tails);
    if (!m->actions || !m->tasks || !room->sorted || !room->now_at || !m->buffers || !m->here ||
        !room->table || !room->tails)
        return false;
    for (size_t i = 0; i < table; i++)
        room->table[i] = -1;
    m->scattered_by = room->table;
    m->scatter_parts = room->table + gradients;
    m->place = room->table + 2 * gradients;
    for (int b = 0; b < spec->gathered_max; b++)
        m->buffers[b] = (struct buffer){.unit = NO_UNIT, .used = -1};
    return true;
}

enum dpt_status dpt_step_list_init(struct dpt_step_list *list, const struct dpt_step_spec *spec,
                                   struct dpt_err *err)
{
    DPT_ASSERT(spec->weights != DPT_WEIGHTS_UNITS || spec->gathered_max >= 1);
    *list = (struct dpt_step_list){.n_actions = 0};
    struct room room = {.sorted = NULL};
    struct maker m = {.spec = spec,
                      .n_waves = spec->forward_only ? 1
                                 : spec->waves      ? dpt_waves_count(spec->waves)
                                                    : spec->assignment.n};
    if (make_room(&m, &room)) {
        for (m.wave = 0; m.wave < m.n_waves; m.wave++)
            make_slot(&m);
        order_tasks(&m, room.sorted, room.now_at);
        insert_tails(&m, room.sorted, room.now_at, room.tails);
        leave_out(&m);
        *list = (struct dpt_step_list){m.actions, m.n_actions, m.tasks, m.n_tasks};
    } else {
        free(m.actions);
        free(m.tasks);
    }
    free_room(&m, &room);
    return list->actions ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "plan of a step: out of memory");
}

void dpt_step_list_fini(struct dpt_step_list *list)
{
    free(list->actions);
    free(list->tasks);
    *list = (struct dpt_step_list){.n_actions = 0};
}
