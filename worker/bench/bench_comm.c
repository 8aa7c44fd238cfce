/* dpt-bench comm: two processes of one machine exchange data over shared memory and over TCP.
 * Measures small exchanges (latency), large exchanges (bandwidth), and the all-reduce of floats
 * that the canonical reduction makes of them (lend, add, gather). */
#include "base/clock.h"
#include "base/median.h"
#include "worker/bench/bench.h"
#include "worker/comm/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 2000 };

static const size_t sizes[] = {8, 1024, 100u * 1024, 1u << 20, 26u << 20, 124u << 20};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Memory that both processes share. A process sets `listening` after it has written its
 * addresses. */
struct shared {
    char shm_addr[2][DPT_COMM_ADDR_BYTES], tcp_addr[2][DPT_COMM_ADDR_BYTES];
    int listening[2];
    double exchange_us[SIZES], reduce_us[SIZES]; /* rank 0's medians */
};

struct side {
    struct dpt_comm *comm;
    struct dpt_comm_mem *mem; /* the vector, then staging of its size */
    float *data;
    int rank;
    struct dpt_err err;
};

#define MUST(side, call)                                                                           \
    do {                                                                                           \
        if ((call) != DPT_OK) {                                                                    \
            (void)fprintf(stderr, "dpt-bench comm: %s\n", (side)->err.text);                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Bytes of the side's memory. */
struct range {
    size_t offset, bytes;
};

/* A transfer to the peer and one from it. */
struct transfers {
    struct dpt_comm_xfer send, recv;
    struct dpt_comm_op *send_op, *recv_op;
};

/* Starts one transfer in each direction. Returns when the peer's data is here. `dir`: the data is
 * received or lent. */
static void begin_transfers(struct side *s, struct range send, enum dpt_comm_dir dir,
                            struct range recv, struct transfers *ret)
{
    *ret = (struct transfers){.send = {.dir = DPT_COMM_SEND,
                                       .peer = 1 - s->rank,
                                       .mem = s->mem,
                                       .offset = send.offset,
                                       .bytes = send.bytes},
                              .recv = {.dir = dir,
                                       .peer = 1 - s->rank,
                                       .mem = s->mem,
                                       .offset = recv.offset,
                                       .bytes = recv.bytes}};
    MUST(s, dpt_comm_exchange(s->comm, &ret->send, 1, &ret->send_op, &s->err));
    MUST(s, dpt_comm_exchange(s->comm, &ret->recv, 1, &ret->recv_op, &s->err));
    MUST(s, dpt_comm_poll(s->comm, ret->recv_op, -1, &s->err));
}

static void end_transfers(struct side *s, struct transfers *t)
{
    dpt_comm_op_free(s->comm, &t->recv_op);
    MUST(s, dpt_comm_poll(s->comm, t->send_op, -1, &s->err));
    dpt_comm_op_free(s->comm, &t->send_op);
}

/* Sends `bytes` to the peer and receives `bytes` from it. */
static void exchange_bytes(struct side *s, size_t bytes)
{
    struct transfers t;
    if (bytes <= DPT_COMM_BUF_BYTES_MAX) {
        static uint8_t all[2 * (size_t)DPT_COMM_BUF_BYTES_MAX];
        MUST(s, dpt_comm_small_all_gather(s->comm, s->data, bytes, all, &s->err));
        return;
    }
    begin_transfers(s, (struct range){0, bytes}, DPT_COMM_RECV,
                    (struct range){sizes[SIZES - 1], bytes}, &t);
    end_transfers(s, &t);
}

/* Each rank owns one half. It reads the peer's values of its half in place, adds them, and sends
 * the sum back. */
static void all_reduce(struct side *s, size_t bytes)
{
    const size_t n = bytes / sizeof(float), half = n / 2 * sizeof(float);
    const struct range halves[] = {{0, half}, {half, n * sizeof(float) - half}};
    const struct range own = halves[s->rank], other = halves[1 - s->rank];
    const struct range staging = {sizes[SIZES - 1] + own.offset, own.bytes};
    struct transfers t;
    begin_transfers(s, other, DPT_COMM_LEND, staging, &t);
    const float *theirs = t.recv.lent;
    float *mine = s->data + own.offset / sizeof(float);
    for (size_t i = 0; i < own.bytes / sizeof(float); i++)
        mine[i] += theirs[i];
    end_transfers(s, &t);
    begin_transfers(s, own, DPT_COMM_RECV, other, &t);
    end_transfers(s, &t);
}

static double median_us(struct side *s, size_t bytes, void (*fn)(struct side *, size_t))
{
    static double us[ROUNDS_MAX];
    const int rounds = bytes <= 100u * 1024 ? ROUNDS_MAX : bytes <= 1u << 20 ? 300 : 15;
    for (int i = 0; i < 3; i++)
        fn(s, bytes);
    for (int i = 0; i < rounds; i++) {
        const int64_t start = dpt_now_ns();
        fn(s, bytes);
        us[i] = (double)(dpt_now_ns() - start) * 1e-3;
    }
    dpt_sort_doubles(us, rounds);
    return us[rounds / 2];
}

static int run_side(struct shared *shared, int rank, bool tcp)
{
    struct side s = {.rank = rank};
    struct dpt_comm_listener *listener;
    MUST(&s, dpt_comm_listener_create("127.0.0.1", &listener, &s.err));
    MUST(&s, dpt_comm_mem_create(listener, 2 * sizes[SIZES - 1], &s.mem, &s.err));
    s.data = dpt_comm_mem_data(s.mem);
    memcpy(shared->shm_addr[rank], dpt_comm_listener_shm_addr(listener), DPT_COMM_ADDR_BYTES);
    memcpy(shared->tcp_addr[rank], dpt_comm_listener_tcp_addr(listener), DPT_COMM_ADDR_BYTES);
    MUST(&s, dpt_bench_meet(shared->listening, 2, rank, DPT_BENCH_MEET_MS, &s.err));
    struct dpt_comm_peer peer = {.rank = 1 - rank, .host = tcp ? 1 - rank : 0};
    memcpy(peer.shm_addr, shared->shm_addr[1 - rank], DPT_COMM_ADDR_BYTES);
    memcpy(peer.tcp_addr, shared->tcp_addr[1 - rank], DPT_COMM_ADDR_BYTES);
    const struct dpt_comm_spec spec = {.run = "bench",
                                       .rank = rank,
                                       .world_size = 2,
                                       .host = tcp ? rank : 0,
                                       .peers = &peer,
                                       .n_peers = 1,
                                       .timeout_ms = 10000};
    MUST(&s, dpt_comm_create(listener, &spec, -1, &s.comm, NULL, &s.err));
    for (int i = 0; i < SIZES; i++) {
        const double us = median_us(&s, sizes[i], exchange_bytes);
        const double reduce_us = median_us(&s, sizes[i], all_reduce);
        if (rank == 0) {
            shared->exchange_us[i] = us;
            shared->reduce_us[i] = reduce_us;
        }
    }
    dpt_comm_destroy(&s.comm);
    dpt_comm_mem_destroy(&s.mem);
    dpt_comm_listener_destroy(&listener);
    return 0;
}

/* Runs both processes; false: one of them failed. */
static bool run_pair(struct shared *shared, bool tcp)
{
    memset(shared, 0, sizeof *shared);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? run_side(shared, 1, tcp) : 1);
    }
    const int rc = run_side(shared, 0, tcp);
    int status = 0;
    return waitpid(pid, &status, 0) == pid && status == 0 && rc == 0;
}

static enum dpt_status run_comm(json_t **ret_report, struct dpt_err *err)
{
    void *memory = NULL;
    DPT_TRY(dpt_bench_share(sizeof(struct shared), &memory, err));
    struct shared *shared = memory;
    json_t *rows = json_array();
    printf("%-5s %12s %14s %14s %12s\n", "by", "bytes", "exchange us", "all-reduce us", "GB/s");
    for (int tcp = 0; tcp < 2; tcp++) {
        const char *by = tcp ? "tcp" : "shm";
        if (!run_pair(shared, tcp == 1)) {
            json_decref(rows);
            return dpt_fail(err, DPT_EPEER, "a process of the bench failed");
        }
        for (int i = 0; i < SIZES; i++) {
            const double gbs = (double)sizes[i] / shared->exchange_us[i] * 1e-3;
            printf("%-5s %12zu %14.1f %14.1f %12.2f\n", by, sizes[i], shared->exchange_us[i],
                   shared->reduce_us[i], gbs);
            json_array_append_new(rows, json_pack("{s:s,s:I,s:f,s:f,s:f}", "by", by, "bytes",
                                                  (json_int_t)sizes[i], "exchange_us",
                                                  shared->exchange_us[i], "all_reduce_us",
                                                  shared->reduce_us[i], "exchange_gb_per_s", gbs));
        }
    }
    *ret_report = json_pack("{s:s,s:i,s:o}", "bench", "comm", "processes", 2, "rows", rows);
    return DPT_OK;
}

const struct dpt_bench dpt_bench_comm = {
    .name = "comm",
    .help = "exchange and all-reduce of two processes, by shared memory and by TCP",
    .run = run_comm,
};
