/* The algorithm and protocol that NCCL chose by size, and the times that it predicted, from the
 * lines of NCCL_DEBUG_SUBSYS=TUNING.
 *
 * Only rank 0 of a communicator writes them. When a communicator starts, it writes a table: for
 * each collective, algorithm and protocol a latency and a bandwidth. Later it writes a line for
 * each collective. The forms are those of NCCL's source from 2.18 to 2.30:
 *   2.18, 2.19   the table alone
 *   2.20 - 2.22  "%ld Bytes -> Algo %d proto %d time %f"
 *   2.23         the same behind "AllReduce: "
 *   2.24 - 2.30  "AllReduce: %ld Bytes -> Algo RING proto LL channel{Lo..Hi}={%d..%d}"
 *   2.27 - 2.30  "AllReduce [Symmetric]: %ld Bytes -> Kernel %s nchannels %d nthreads %d …"
 *   2.29 - 2.30  "AllGather [Copy Engine]: %ld Bytes -> cudaMemcpy…", and [Hierarchical CE]
 * A line that is cut or has other text in it is passed over. Pure. */
#ifndef DPT_WORKER_DOCTOR_NCCL_TUNING_H
#define DPT_WORKER_DOCTOR_NCCL_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_NCCL_COLLECTIVES = 5,
    DPT_NCCL_ALGORITHMS = 7,
    DPT_NCCL_PROTOCOLS = 3,
    DPT_NCCL_CHOICES_MAX = 256,
    DPT_NCCL_TABLES_MAX = 16,
    DPT_NCCL_OWNERS_MAX = 64,
    DPT_NCCL_NAME_BYTES = 40,
    DPT_NCCL_PROCESS_BYTES = 80,
    DPT_NCCL_WHY_BYTES = 256
};

struct dpt_nccl_cell {
    float latency_us;
    float gb_per_s; /* 10^9 bytes; 0: not enabled */
};

/* The table of a communicator. A size takes latency_us + bytes / (1000 * gb_per_s), before NCCL's
 * corrections. */
struct dpt_nccl_table {
    int ranks; /* 0: unknown */
    bool has[DPT_NCCL_ALGORITHMS];
    struct dpt_nccl_cell cell[DPT_NCCL_COLLECTIVES][DPT_NCCL_ALGORITHMS][DPT_NCCL_PROTOCOLS];
};

/* A choice, with the number of lines that have it. */
struct dpt_nccl_choice {
    char collective[DPT_NCCL_NAME_BYTES]; /* "": the line does not name it */
    uint64_t bytes;                       /* as the line has them */
    bool per_rank;           /* `bytes` of an all-gather or reduce-scatter are those of one rank */
    int algorithm, protocol; /* -1: `method` */
    char method[DPT_NCCL_NAME_BYTES]; /* a kernel for registered windows, or the copy engine */
    int channels;                     /* 0: unknown */
    int table;                        /* index of the communicator's table; -1: none */
    double time_us; /* NCCL's own prediction, of the newest line; < 0: the line has none */
    int count;
};

/* A process that has written tables, and the table that it writes. */
struct dpt_nccl_owner {
    char process[DPT_NCCL_PROCESS_BYTES]; /* "host:pid" */
    int ranks;                            /* of its newest communicator as rank 0; 0: unknown */
    int table;                            /* the newest that is complete; -1: none */
    bool open;                            /* `next` has lines */
    struct dpt_nccl_table next;
    int n_columns; /* of the present block; 0: no block */
    int column[DPT_NCCL_ALGORITHMS], protocol[DPT_NCCL_PROTOCOLS];
    bool has_protocols;
    bool row_seen[DPT_NCCL_COLLECTIVES];
};

/* Zero-initialise. */
struct dpt_nccl_tuning {
    int n_choices, choices_left_out;                     /* choices_left_out: lines */
    struct dpt_nccl_choice choice[DPT_NCCL_CHOICES_MAX]; /* by collective, then size */
    int n_tables, tables_left_out;
    struct dpt_nccl_table table[DPT_NCCL_TABLES_MAX]; /* each different from the others */
    int n_owners;
    struct dpt_nccl_owner owner[DPT_NCCL_OWNERS_MAX];
    char algo[DPT_NCCL_NAME_BYTES], proto[DPT_NCCL_NAME_BYTES]; /* by the environment; "": not */
    char tuner[DPT_NCCL_NAME_BYTES];                            /* a tuner plugin; "": none */
};

/* Takes a line: the text before and after "NCCL INFO ". */
void dpt_nccl_tuning_add(struct dpt_nccl_tuning *tuning, const char *prefix, size_t prefix_bytes,
                         const char *body);
/* Call it after the last line. */
void dpt_nccl_tuning_end(struct dpt_nccl_tuning *tuning);

/* "AllReduce", "Ring", "LL128": NCCL's names. */
const char *dpt_nccl_collective_name(int collective);
const char *dpt_nccl_algorithm_name(int algorithm);
const char *dpt_nccl_protocol_name(int protocol);

/* The predicted time of a choice in us: NCCL's own, else from the table; < 0: unknown. */
double dpt_nccl_choice_us(const struct dpt_nccl_tuning *tuning,
                          const struct dpt_nccl_choice *choice);
/* Why NCCL chose it, as far as the log tells. */
void dpt_nccl_choice_why(const struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice,
                         char ret_text[DPT_NCCL_WHY_BYTES]);

#endif
