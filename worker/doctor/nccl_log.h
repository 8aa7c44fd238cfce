/* A summary of the lines that NCCL writes with NCCL_DEBUG=INFO: what it chose, and why.
 *
 * Lines of NCCL 2.4 to 2.28 are known. Other lines of the file, and lines that NCCL may write and
 * this parser does not know, are skipped. Pure. */
#ifndef DPT_WORKER_DOCTOR_NCCL_LOG_H
#define DPT_WORKER_DOCTOR_NCCL_LOG_H

#include "worker/doctor/nccl_tuning.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_NCCL_EDGES_MAX = 512,
    DPT_NCCL_REASONS_MAX = 32,
    DPT_NCCL_TEXT_BYTES = 192,
    DPT_NCCL_SHORT_BYTES = 48
};

/* The connections of one rank to another with one transport. */
struct dpt_nccl_edge {
    int from, to;
    char via[DPT_NCCL_SHORT_BYTES]; /* "P2P/CUMEM", "SHM/direct/direct", "NET/Socket/0" */
    int channels;
    bool far; /* a NET transport */
};

/* A reason of NCCL's choice, with the number of ranks or lines that gave it. */
struct dpt_nccl_reason {
    char text[DPT_NCCL_TEXT_BYTES]; /* what it means */
    const char *remedy;             /* literal; "": none */
    char line[DPT_NCCL_TEXT_BYTES]; /* the first such line, without host and process */
    int count;
    bool bad; /* it costs bandwidth, or is an error */
};

/* Zero-initialise. */
struct dpt_nccl_log {
    size_t lines; /* of NCCL */
    char version[DPT_NCCL_SHORT_BYTES];
    char network[DPT_NCCL_SHORT_BYTES];  /* "Using network …": IB, Socket, a plugin */
    char bootstrap[DPT_NCCL_TEXT_BYTES]; /* the interface of the first contact */
    char devices[DPT_NCCL_TEXT_BYTES];   /* of the network: "[0]mlx5_0:1/IB …" */
    int ranks;                           /* largest nranks of a communicator; 0: unknown */
    int channels, trees, rings;          /* of the first rank that says it */
    char ring[DPT_NCCL_TEXT_BYTES];      /* channel 0: "0 1 2 3" */
    char tree[DPT_NCCL_TEXT_BYTES];      /* of the first rank */
    int n_edges, edges_left_out;
    struct dpt_nccl_edge edge[DPT_NCCL_EDGES_MAX];
    int n_reasons;
    struct dpt_nccl_reason reason[DPT_NCCL_REASONS_MAX];
    struct dpt_nccl_tuning tuning;
};

/* Takes one line of the file, without its newline. Control characters and any length are allowed.
 */
void dpt_nccl_log_add(struct dpt_nccl_log *log, const char *line);
/* Call it after the last line. */
void dpt_nccl_log_end(struct dpt_nccl_log *log);

/* The number of edges whose transport begins with `prefix` ("P2P", "SHM", "NET"). */
int dpt_nccl_log_edges(const struct dpt_nccl_log *log, const char *prefix);

#endif
