/* The command line of dpt-doctor. */
#ifndef DPT_WORKER_DOCTOR_ARGS_H
#define DPT_WORKER_DOCTOR_ARGS_H

#include "base/err.h"
#include "worker/doctor/matrix.h"

#include <stdint.h>
#include <stdio.h>

enum dpt_doctor_command {
    DPT_DOCTOR_MACHINE,
    DPT_DOCTOR_LISTEN, /* net --listen */
    DPT_DOCTOR_PEERS,  /* net --peers */
    DPT_DOCTOR_RUN,    /* net --rdzv-endpoint */
    DPT_DOCTOR_HANG,   /* hang --server */
    DPT_DOCTOR_LOG     /* hang --log */
};

struct dpt_doctor_args {
    enum dpt_doctor_command command;
    bool help, version;
    const char *json; /* a file, or "-" for the standard output in place of the page; NULL: none */
    /* machine */
    const char *root, *server, *interface, *nccl_log; /* root: ""; others NULL: not given */
    /* net */
    int64_t port; /* -1: not given */
    const char *bind_to, *port_file;
    int64_t listen_s;               /* the node listens for this time, */
    bool until_eof;                 /* and until its standard input ends */
    const char *endpoint, *key_dir; /* of the run's server; NULL: not given */
    const char *shell;              /* starts a program on a node; NULL: listeners run there */
    int64_t peer_port;              /* of these listeners; -1: not given */
    int n_peers;
    const char *peer[DPT_MATRIX_NODES_MAX]; /* in `text` */
    int64_t stream_ms, stream_mib;
    /* net, hang */
    int64_t timeout_ms;
    const char *run; /* "": the server's only one */
    /* hang */
    const char *log;
    int64_t seconds;
    char text[8192]; /* of --peers */
};

/* DPT_EINVAL names the option. --help and --version end the reading. `ret` points into itself. */
DPT_MUST_USE enum dpt_status dpt_doctor_args_read(int argc, char **argv,
                                                  struct dpt_doctor_args *ret, struct dpt_err *err);

void dpt_doctor_args_help(FILE *out);

#endif
