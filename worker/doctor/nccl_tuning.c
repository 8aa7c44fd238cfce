/* NCCL's lines of TUNING (nccl_tuning.h). */
#include "worker/doctor/nccl_tuning.h"

#include "worker/doctor/nccl_words.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { CELL_BYTES = 24, CELLS_MAX = 1 + DPT_NCCL_ALGORITHMS * DPT_NCCL_PROTOCOLS };

/* ---- owners ---- */

/* "host:pid" of a line that begins with "host:pid:tid [device] "; a time may stand before it. */
static void find_process(const char *prefix, size_t bytes, char ret[DPT_NCCL_PROCESS_BYTES])
{
    size_t end = bytes, from;
    while (end > 0 && prefix[end - 1] != '[')
        end--;
    end = end >= 2 ? end - 2 : 0; /* before " [" */
    for (from = end; from > 0 && prefix[from - 1] != ' ';)
        from--;
    while (end > from && prefix[end - 1] != ':')
        end--;
    const size_t n = end > from ? end - 1 - from : 0;
    (void)snprintf(ret, DPT_NCCL_PROCESS_BYTES, "%.*s",
                   (int)(n < DPT_NCCL_PROCESS_BYTES ? n : DPT_NCCL_PROCESS_BYTES - 1),
                   prefix + from);
}

/* NULL: there is none, and no room for one. */
static struct dpt_nccl_owner *find_owner(struct dpt_nccl_tuning *tuning, const char *prefix,
                                         size_t bytes)
{
    char process[DPT_NCCL_PROCESS_BYTES];
    find_process(prefix, bytes, process);
    for (int i = 0; i < tuning->n_owners; i++)
        if (strcmp(tuning->owner[i].process, process) == 0)
            return &tuning->owner[i];
    if (tuning->n_owners == DPT_NCCL_OWNERS_MAX)
        return NULL;
    struct dpt_nccl_owner *owner = &tuning->owner[tuning->n_owners++];
    *owner = (struct dpt_nccl_owner){.table = -1};
    memcpy(owner->process, process, sizeof process);
    return owner;
}

/* ---- the table ---- */

/* Cuts at each "|". What follows the last one is left out, so a line that was cut lacks a cell. */
static int split_cells(const char *body, char ret[CELLS_MAX][CELL_BYTES])
{
    int n = 0;
    for (const char *bar; n < CELLS_MAX && (bar = strchr(body, '|')); body = bar + 1) {
        const char *end = bar;
        body += strspn(body, " ");
        while (end > body && end[-1] == ' ')
            end--;
        if (end - body >= CELL_BYTES)
            return 0;
        (void)snprintf(ret[n++], CELL_BYTES, "%.*s", (int)(end - body), body);
    }
    return n;
}

static bool same_table(const struct dpt_nccl_table *a, const struct dpt_nccl_table *b)
{
    if (a->ranks != b->ranks || memcmp(a->has, b->has, sizeof a->has) != 0)
        return false;
    for (int c = 0; c < DPT_NCCL_COLLECTIVES; c++)
        for (int i = 0; i < DPT_NCCL_ALGORITHMS; i++)
            for (int p = 0; p < DPT_NCCL_PROTOCOLS; p++)
                if (a->cell[c][i][p].latency_us < b->cell[c][i][p].latency_us ||
                    a->cell[c][i][p].latency_us > b->cell[c][i][p].latency_us ||
                    a->cell[c][i][p].gb_per_s < b->cell[c][i][p].gb_per_s ||
                    a->cell[c][i][p].gb_per_s > b->cell[c][i][p].gb_per_s)
                    return false;
    return true;
}

static bool has_times(const struct dpt_nccl_table *table)
{
    for (int i = 0; i < DPT_NCCL_ALGORITHMS; i++)
        if (table->has[i])
            return true;
    return false;
}

/* The table that the process has written is complete. */
static void close_table(struct dpt_nccl_tuning *tuning, struct dpt_nccl_owner *owner)
{
    if (!owner->open)
        return;
    owner->open = false;
    owner->n_columns = 0;
    owner->table = -1;
    if (!has_times(&owner->next))
        return;
    owner->next.ranks = owner->ranks;
    for (int i = 0; i < tuning->n_tables; i++)
        if (same_table(&tuning->table[i], &owner->next)) {
            owner->table = i;
            return;
        }
    if (tuning->n_tables == DPT_NCCL_TABLES_MAX) {
        tuning->tables_left_out++;
        return;
    }
    tuning->table[tuning->n_tables] = owner->next;
    owner->table = tuning->n_tables++;
}

/* "  Algorithm   |  Tree  |  Ring  | …": a block of rows begins. */
static void take_algorithms(struct dpt_nccl_tuning *tuning, struct dpt_nccl_owner *owner, int n,
                            char cell[][CELL_BYTES])
{
    bool is_new = !owner->open;
    int column[DPT_NCCL_ALGORITHMS];
    owner->n_columns = 0;
    if (n < 1 || n > DPT_NCCL_ALGORITHMS)
        return;
    for (int i = 0; i < n; i++) {
        column[i] = dpt_nccl_find_algorithm(cell[i]);
        is_new = is_new || (column[i] >= 0 && owner->next.has[column[i]]);
    }
    if (is_new) {
        close_table(tuning, owner);
        memset(&owner->next, 0, sizeof owner->next);
        owner->open = true;
    }
    memcpy(owner->column, column, sizeof column);
    memset(owner->row_seen, 0, sizeof owner->row_seen);
    owner->has_protocols = false;
    owner->n_columns = n;
}

/* "  Protocol    |  LL |  LL128 |  Simple | …" follows the algorithms. */
static void take_protocols(struct dpt_nccl_owner *owner, int n, char cell[][CELL_BYTES])
{
    bool is_known = owner->n_columns > 0 && !owner->has_protocols && n >= DPT_NCCL_PROTOCOLS;
    for (int i = 0; is_known && i < DPT_NCCL_PROTOCOLS; i++) {
        owner->protocol[i] = dpt_nccl_find_protocol(cell[i]);
        is_known = owner->protocol[i] >= 0;
    }
    owner->has_protocols = is_known;
    if (!is_known)
        owner->n_columns = 0; /* the line of its algorithms is missing */
}

/* "    AllReduce |    6.6/   4.7 | …": a latency and a bandwidth for each algorithm and protocol.
 */
static void take_row(struct dpt_nccl_owner *owner, int collective, int n, char cell[][CELL_BYTES])
{
    double latency[CELLS_MAX], bandwidth[CELLS_MAX];
    if (!owner->has_protocols || n != owner->n_columns * DPT_NCCL_PROTOCOLS)
        return;
    if (owner->row_seen[collective]) {
        owner->n_columns = 0; /* the first lines of another block are missing */
        return;
    }
    for (int i = 0; i < n; i++) {
        const char *at = cell[i];
        if (!dpt_nccl_take_decimal(&at, 1, &latency[i]) || !dpt_nccl_take_text(&at, "/"))
            return;
        at += strspn(at, " ");
        if (!dpt_nccl_take_decimal(&at, 1, &bandwidth[i]) || !dpt_nccl_is_end(at))
            return;
    }
    owner->row_seen[collective] = true;
    for (int i = 0; i < n; i++) {
        const int algorithm = owner->column[i / DPT_NCCL_PROTOCOLS];
        if (algorithm < 0)
            continue;
        owner->next.has[algorithm] = true;
        owner->next.cell[collective][algorithm][owner->protocol[i % DPT_NCCL_PROTOCOLS]] =
            (struct dpt_nccl_cell){(float)latency[i], (float)bandwidth[i]};
    }
}

/* `n` cells follow the first one. */
static void take_table_line(struct dpt_nccl_tuning *tuning, struct dpt_nccl_owner *owner, int n,
                            char cell[][CELL_BYTES])
{
    if (strcmp(cell[0], "Algorithm") == 0)
        take_algorithms(tuning, owner, n, cell + 1);
    else if (strcmp(cell[0], "Protocol") == 0)
        take_protocols(owner, n, cell + 1);
    else if (owner->n_columns > 0)
        take_row(owner, dpt_nccl_find_collective(cell[0]), n, cell + 1);
}

/* ---- choices ---- */

static int order_choices(const struct dpt_nccl_choice *a, const struct dpt_nccl_choice *b)
{
    const int64_t difference[] = {
        strcmp(a->collective, b->collective),
        a->bytes < b->bytes ? -1 : a->bytes > b->bytes,
        a->table - b->table,
        a->algorithm - b->algorithm,
        a->protocol - b->protocol,
        strcmp(a->method, b->method),
        a->channels - b->channels,
    };
    for (size_t i = 0; i < sizeof difference / sizeof *difference; i++)
        if (difference[i] != 0)
            return difference[i] < 0 ? -1 : 1;
    return 0;
}

static void add_choice(struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice)
{
    int at = 0, order = 1;
    while (at < tuning->n_choices && (order = order_choices(&tuning->choice[at], choice)) < 0)
        at++;
    if (at < tuning->n_choices && order == 0) {
        tuning->choice[at].count++;
        tuning->choice[at].time_us = choice->time_us;
        return;
    }
    if (tuning->n_choices == DPT_NCCL_CHOICES_MAX) {
        tuning->choices_left_out++;
        return;
    }
    memmove(&tuning->choice[at + 1], &tuning->choice[at],
            (size_t)(tuning->n_choices - at) * sizeof *choice);
    tuning->choice[at] = *choice;
    tuning->n_choices++;
}

/* "Algo 1 proto 0 time 12.500000" or "Algo RING proto LL channel{Lo..Hi}={0..3}". */
static bool take_algorithm(const char *at, struct dpt_nccl_choice *ret)
{
    char algorithm[DPT_NCCL_NAME_BYTES], protocol[DPT_NCCL_NAME_BYTES];
    uint64_t low, high;
    if (!dpt_nccl_take_text(&at, "Algo ") || !dpt_nccl_take_word(&at, algorithm) ||
        !dpt_nccl_take_text(&at, " proto ") || !dpt_nccl_take_word(&at, protocol))
        return false;
    ret->algorithm = dpt_nccl_find_algorithm(algorithm);
    ret->protocol = dpt_nccl_find_protocol(protocol);
    if (ret->algorithm < 0 || ret->protocol < 0)
        return false;
    if (dpt_nccl_take_text(&at, " time "))
        return dpt_nccl_take_decimal(&at, 6, &ret->time_us) && dpt_nccl_is_end(at);
    if (!dpt_nccl_take_text(&at, " channel{Lo..Hi}={") || !dpt_nccl_take_size(&at, 1024, &low) ||
        !dpt_nccl_take_text(&at, "..") || !dpt_nccl_take_size(&at, 1024, &high) ||
        !dpt_nccl_take_text(&at, "}") || high < low)
        return false;
    ret->channels = (int)(high - low + 1);
    ret->per_rank = true;
    return dpt_nccl_is_end(at);
}

/* "Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1", "cudaMemcpy", "RMA proxy + CE". */
static bool take_method(const char *at, const char *tag, struct dpt_nccl_choice *ret)
{
    uint64_t channels, threads, works;
    ret->per_rank = true;
    if (strcmp(tag, "Symmetric") != 0) {
        (void)snprintf(ret->method, sizeof ret->method, "%.*s", DPT_NCCL_NAME_BYTES - 1, tag);
        return dpt_nccl_take_text(&at, "cudaMemcpy") || dpt_nccl_take_text(&at, "RMA proxy + CE");
    }
    if (!dpt_nccl_take_text(&at, "Kernel ") || !dpt_nccl_take_word(&at, ret->method) ||
        !dpt_nccl_take_text(&at, " nchannels ") || !dpt_nccl_take_size(&at, 1024, &channels) ||
        !dpt_nccl_take_text(&at, " nthreads ") || !dpt_nccl_take_size(&at, 65536, &threads))
        return false;
    ret->channels = (int)channels;
    return dpt_nccl_is_end(at) ||
           (dpt_nccl_take_text(&at, " nWorks ") && dpt_nccl_take_size(&at, UINT32_MAX, &works) &&
            dpt_nccl_is_end(at));
}

/* "", "AllReduce: " or "AllReduce [Symmetric]: " up to `end`. */
static bool take_head(const char *at, const char *end, struct dpt_nccl_choice *ret,
                      const char **ret_tag)
{
    static const char *const tags[] = {"Symmetric", "Copy Engine", "Hierarchical CE"};
    *ret_tag = NULL;
    if (at == end)
        return true;
    if (!dpt_nccl_take_word(&at, ret->collective))
        return false;
    if (dpt_nccl_take_text(&at, " ["))
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
            if (dpt_nccl_take_text(&at, tags[i]) && dpt_nccl_take_text(&at, "]"))
                *ret_tag = tags[i];
    return dpt_nccl_take_text(&at, ": ") && at == end;
}

static void take_choice(struct dpt_nccl_tuning *tuning, struct dpt_nccl_owner *owner,
                        const char *body, const char *arrow)
{
    const char *tag = NULL;
    struct dpt_nccl_choice choice = {
        .algorithm = -1, .protocol = -1, .table = -1, .time_us = -1, .count = 1};
    const char *digits = arrow;
    while (digits > body && isdigit((unsigned char)digits[-1]))
        digits--;
    if (!take_head(body, digits, &choice, &tag) ||
        !dpt_nccl_take_size(&digits, (uint64_t)1 << 62, &choice.bytes) || digits != arrow)
        return;
    arrow += strlen(" Bytes -> ");
    if (tag ? !take_method(arrow, tag, &choice) : !take_algorithm(arrow, &choice))
        return;
    if (owner) {
        close_table(tuning, owner);
        choice.table = owner->table;
    }
    add_choice(tuning, &choice);
}

/* ---- other lines ---- */

/* The rest behind `key`; control characters become '?'. */
static bool keep_value(char ret[DPT_NCCL_NAME_BYTES], const char *body, const char *key)
{
    if (!dpt_nccl_take_text(&body, key) || *body == '\0')
        return false;
    size_t n = 0;
    for (; n < DPT_NCCL_NAME_BYTES - 1 && body[n] != '\0' && body[n] != '\r'; n++)
        ret[n] = (char)(isprint((unsigned char)body[n]) ? body[n] : '?');
    ret[n] = '\0';
    return true;
}

static void take_tuner(struct dpt_nccl_tuning *tuning, const char *body)
{
    static const char *const keys[] = {"TUNER/Plugin: Using tuner plugin ", "TUNER/Plugin: Using ",
                                       "Using tuner plugin: "};
    if (strstr(body, "internal tuner"))
        return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keep_value(tuning->tuner, body, keys[i]))
            return;
}

/* "… rank 0 nranks 8 … - Init START": a communicator, before its table. */
static void take_ranks(struct dpt_nccl_tuning *tuning, struct dpt_nccl_owner *owner, const char *at)
{
    uint64_t ranks;
    close_table(tuning, owner);
    if (dpt_nccl_take_size(&at, 1 << 20, &ranks))
        owner->ranks = (int)ranks;
}

void dpt_nccl_tuning_add(struct dpt_nccl_tuning *tuning, const char *prefix, size_t prefix_bytes,
                         const char *body)
{
    static const char start[] = " rank 0 nranks ";
    char cell[CELLS_MAX][CELL_BYTES];
    const char *arrow = strstr(body, " Bytes -> "), *ranks = strstr(body, start);
    const int cells = split_cells(body, cell);
    const bool is_table =
        cells > 1 && (strcmp(cell[0], "Algorithm") == 0 || strcmp(cell[0], "Protocol") == 0 ||
                      dpt_nccl_find_collective(cell[0]) >= 0);
    if (ranks && !strstr(ranks, "Init START"))
        ranks = NULL;
    if (keep_value(tuning->algo, body, "NCCL_ALGO set by environment to ") ||
        keep_value(tuning->proto, body, "NCCL_PROTO set by environment to "))
        return;
    take_tuner(tuning, body);
    if (!arrow && !ranks && !is_table)
        return; /* of ranks that choose nothing, no owner is kept */
    struct dpt_nccl_owner *owner = find_owner(tuning, prefix, prefix_bytes);
    if (arrow)
        take_choice(tuning, owner, body, arrow);
    else if (owner && ranks)
        take_ranks(tuning, owner, ranks + strlen(start));
    else if (owner)
        take_table_line(tuning, owner, cells - 1, cell);
}

void dpt_nccl_tuning_end(struct dpt_nccl_tuning *tuning)
{
    for (int i = 0; i < tuning->n_owners; i++)
        close_table(tuning, &tuning->owner[i]);
}
