/* The lists of a step (step_list.h). */
#include "worker/plan/step_list.h"

#include "worker/plan/task_order.h"

#include <limits.h>
#include <stdlib.h>

enum { GRADIENT_BUFFERS = 2, NO_UNIT = -1 };

/* A list being made. First the list of member 0 is made, which has a slot in every wave. At the end
 * the actions that the rank does not have are removed, and its tasks there become idle
 * (task_order.h). */
struct maker {
    const struct dpt_step_spec *spec;
    struct dpt_action *actions;
    int n_actions;
    struct dpt_task *tasks;
    int n_tasks;
    int wave, n_waves;
    int last_use; /* number of actions up to the end of the last use of weights */

    /* UNITS: the shared buffers. */
    struct buffer {
        int unit;
        int freed; /* number of actions up to its last FREE */
        int used;  /* number of its last use */
    } * buffers;
    int uses;   /* number of uses so far */
    bool *here; /* [n_units] is gathered and stays gathered */

    /* Gradients. */
    int turn;          /* of the shared buffers */
    int *table;        /* of the next three */
    int *scattered_by; /* [gradient buffers] first task of the last scatter out of it; -1: none */
    int *scatter_parts;
    int *place;                   /* [n_units] gradient buffer of the present slot */
    int first_of_wave, n_of_wave; /* buckets: scatters of the wave before */
};

static bool is_borrowed(const struct dpt_step_spec *spec, int unit)
{
    for (int by = 0; by < spec->n_units; by++)
        if (spec->borrows[by] == unit)
            return true;
    return false;
}

static int n_borrowed_below(const struct dpt_step_spec *spec, int unit)
{
    int n = 0;
    for (int u = 0; u < unit; u++)
        n += is_borrowed(spec, u);
    return n;
}

static int n_ranges(const struct dpt_step_spec *spec)
{
    return spec->n_buckets > 0 ? spec->n_buckets : spec->n_units;
}

/* Index of the separate buffer of a borrowed unit, for weights and for gradients; -1: the unit
 * shares buffers. */
static int own_buffer(const struct dpt_step_spec *spec, int unit)
{
    return is_borrowed(spec, unit) ? n_borrowed_below(spec, unit) : -1;
}

int dpt_step_list_gradient_buffers(const struct dpt_step_spec *spec, int *ret_own)
{
    const bool by_units = spec->waves && spec->n_buckets == 0;
    *ret_own = by_units ? n_borrowed_below(spec, spec->n_units) : 0;
    return by_units ? *ret_own + GRADIENT_BUFFERS : spec->waves != NULL;
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
    task.active = m->spec->waves ? dpt_waves_active(m->spec->waves, m->wave) : INT_MAX;
    m->tasks[m->n_tasks++] = task;
}

/* Adds a gather into a buffer that is free after `actions` actions. */
static void add_gather(struct maker *m, int unit, int buffer, int actions)
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

/* The unit of use number `use`: in a slot forward uses the units in order, then backward uses them
 * in reverse order. */
static int unit_of_use(const struct maker *m, int use)
{
    const int n = m->spec->n_units, per_slot = m->spec->forward_only ? n : 2 * n;
    const int at = use % per_slot;
    return at < n ? at : 2 * n - 1 - at;
}

/* The number of uses until the unit is used again. */
static int next_use(const struct maker *m, int unit, int from)
{
    int ahead = 1;
    while (ahead <= 4 * m->spec->n_units && unit_of_use(m, from + ahead) != unit)
        ahead++;
    return ahead;
}

/* The shared buffer for the next unit. Buffers of the use before are left out, so that the buffer
 * can be filled during that use. Among the others it is the buffer whose unit is used last
 * (Belady's rule). */
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
    const int own = n_borrowed_below(m->spec, m->spec->n_units);
    int found = -1;
    for (int b = 0; b < m->spec->gathered_max; b++)
        if (m->buffers[b].unit == unit)
            found = b;
    if (found < 0) {
        const int index = choose_buffer(m, own);
        found = index - own;
        add_gather(m, unit, index, m->buffers[found].freed);
        m->buffers[found].unit = unit;
    }
    m->buffers[found].used = m->uses;
}

/* Before unit `unit` is computed: gathers its weights, and the weights of the unit from which it
 * borrows. */
static void need_weights(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    const int needed[] = {spec->borrows[unit], unit};
    if (spec->weights == DPT_WEIGHTS_HELD)
        return;
    for (int i = 0; i < 2; i++) {
        if (needed[i] < 0)
            continue;
        const int own = own_buffer(spec, needed[i]);
        if (spec->weights == DPT_WEIGHTS_UNITS && own < 0) {
            use_shared(m, needed[i]);
        } else if (!m->here[needed[i]]) {
            add_gather(m, needed[i], spec->weights == DPT_WEIGHTS_UNITS ? own : -1, 0);
            m->here[needed[i]] = true;
        }
    }
}

static void free_weights(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    /* Weights that are kept are not freed, but without prefetch the FREE lets the next unit's
     * GATHER begin. */
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

/* Adds the RESERVE before the first backward that writes a unit's gradient. */
static void add_reserve(struct maker *m, int unit)
{
    int own;
    (void)dpt_step_list_gradient_buffers(m->spec, &own);
    int buffer = own_buffer(m->spec, unit);
    if (buffer < 0)
        buffer = own + m->turn++ % GRADIENT_BUFFERS;
    m->place[unit] = buffer;
    struct dpt_action *a = add_action(m, DPT_ACTION_RESERVE, unit);
    a->buffer = buffer;
    a->first_task = m->scattered_by[buffer];
    a->n_tasks = m->scattered_by[buffer] < 0 ? 0 : m->scatter_parts[buffer];
}

/* Reduces a range that is complete in a gradient buffer. With `waits` the main thread waits for the
 * range's scatter, and for the `shares` tasks that insert_tails adds after it. */
static void add_reduce(struct maker *m, int range, int buffer, bool waits, int shares)
{
    struct dpt_action *a = add_action(m, DPT_ACTION_REDUCE, range);
    const int parts = m->spec->waves ? m->spec->parts[range] : 0;
    if (waits && parts > 0) {
        a->first_task = m->n_tasks;
        a->n_tasks = parts + shares;
    }
    for (int part = 0; part < parts; part++)
        add_task(m, (struct dpt_task){.kind = DPT_TASK_SCATTER,
                                      .unit = range,
                                      .buffer = buffer,
                                      .part = part,
                                      .n_parts = parts,
                                      .actions = m->n_actions});
}

static void add_scatter(struct maker *m, int unit)
{
    const int buffer = m->place[unit];
    m->scattered_by[buffer] = m->n_tasks;
    m->scatter_parts[buffer] = m->spec->parts[unit];
    add_reduce(m, unit, buffer, !m->spec->overlap, 0);
    m->place[unit] = -1;
}

/* Reduces the buckets that the backward of `unit` completes, the last bucket first; unit -1: all
 * buckets. */
static void reduce_buckets(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    const bool last = m->wave == m->n_waves - 1,
               comes_back = spec->share && (last || spec->buckets.each_slot);
    for (int b = spec->n_buckets - 1; b >= 0 && (spec->waves || last); b--)
        if (unit < 0 || spec->bucket_unit[b] == unit)
            add_reduce(m, b, 0, spec->buckets.waits, comes_back);
}

static void add_backward(struct maker *m, int unit)
{
    const struct dpt_step_spec *spec = m->spec;
    const bool by_units = spec->waves && spec->n_buckets == 0;
    need_weights(m, unit);
    if (by_units && spec->borrows[unit] >= 0 && m->place[spec->borrows[unit]] < 0)
        add_reserve(m, spec->borrows[unit]);
    if (by_units && m->place[unit] < 0)
        add_reserve(m, unit);
    (void)add_action(m, DPT_ACTION_BACKWARD, unit);
    free_weights(m, unit);
    if (by_units)
        add_scatter(m, unit);
    else if (spec->buckets.announced)
        reduce_buckets(m, unit);
}

/* Adds a RESERVE before the first backward of a slot, which writes to the flat vector: the scatters
 * of the slot before must be over. */
static void reserve_flat(struct maker *m)
{
    if (m->spec->waves && m->wave > 0 && !m->spec->buckets.waits) {
        struct dpt_action *a = add_action(m, DPT_ACTION_RESERVE, -1);
        a->first_task = m->first_of_wave;
        a->n_tasks = m->n_of_wave;
    }
    m->first_of_wave = m->n_tasks;
}

/* Adds the copies between forward and backward; neither waits for them. */
static void add_copies(struct maker *m)
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
        add_copies(m);
    if (m->spec->n_buckets > 0)
        reserve_flat(m);
    for (int unit = n - 1; unit >= 0 && !m->spec->forward_only; unit--)
        add_backward(m, unit);
    if (m->spec->n_buckets > 0 && !m->spec->buckets.announced)
        reduce_buckets(m, -1);
    m->n_of_wave = m->n_tasks - m->first_of_wave;
    (void)add_action(m, DPT_ACTION_END_SLOT, -1);
}

static int parts_of(const struct dpt_step_spec *spec)
{
    int n = 0;
    for (int r = 0; spec->waves && r < n_ranges(spec); r++)
        n += spec->parts[r] + (spec->cross_parts ? spec->cross_parts[r] : 0);
    return n;
}

static void free_room(struct maker *m)
{
    free(m->buffers);
    free(m->here);
    free(m->table);
}

/* Allocates the list, and the memory for making it. */
static bool make_room(struct maker *m)
{
    const struct dpt_step_spec *spec = m->spec;
    const size_t units = (size_t)spec->n_units, waves = (size_t)m->n_waves,
                 ranges = (size_t)n_ranges(spec);
    /* A use of a unit adds, beside the use itself, at most two GATHER, two RESERVE, a FREE and a
     * REDUCE. */
    const size_t actions_max = waves * (3 + 2 * units * 7 + ranges);
    const size_t tasks_max =
        waves * (4 * units + (size_t)parts_of(spec) + ranges) + units * (size_t)spec->copies;
    int own;
    const int gradients = dpt_step_list_gradient_buffers(spec, &own);
    const size_t table = 2 * (size_t)gradients + units;
    m->actions = calloc(actions_max, sizeof *m->actions);
    m->tasks = calloc(tasks_max, sizeof *m->tasks);
    m->buffers = calloc((size_t)spec->gathered_max + 1, sizeof *m->buffers);
    m->here = calloc(units, sizeof *m->here);
    m->table = malloc(table * sizeof *m->table);
    if (!m->actions || !m->tasks || !m->buffers || !m->here || !m->table)
        return false;
    for (size_t i = 0; i < table; i++)
        m->table[i] = -1;
    m->scattered_by = m->table;
    m->scatter_parts = m->table + gradients;
    m->place = m->table + 2 * gradients;
    for (int b = 0; b < spec->gathered_max; b++)
        m->buffers[b] = (struct buffer){.unit = NO_UNIT, .used = -1};
    return true;
}

enum dpt_status dpt_step_list_init(struct dpt_step_list *list, const struct dpt_step_spec *spec,
                                   struct dpt_err *err)
{
    DPT_ASSERT(spec->weights != DPT_WEIGHTS_UNITS || spec->gathered_max >= 1);
    DPT_ASSERT(!spec->buckets.each_slot || spec->buckets.waits || spec->n_buckets == 0);
    struct maker m = {.spec = spec,
                      .n_waves = spec->forward_only ? 1
                                 : spec->waves      ? dpt_waves_count(spec->waves)
                                                    : spec->assignment.n};
    bool made = make_room(&m);
    for (m.wave = 0; made && m.wave < m.n_waves; m.wave++)
        make_slot(&m);
    *list = (struct dpt_step_list){m.actions, m.n_actions, m.tasks, m.n_tasks};
    made = made && dpt_task_order(list, spec, m.n_waves);
    free_room(&m);
    if (made)
        return DPT_OK;
    dpt_step_list_fini(list);
    return dpt_fail_nomem(err, "plan of a step");
}

void dpt_step_list_fini(struct dpt_step_list *list)
{
    free(list->actions);
    free(list->tasks);
    *list = (struct dpt_step_list){.n_actions = 0};
}
