/* Measures the server's state machine with many nodes in one process (usage in the text below).
 *
 * Every message takes the way of a real one, without the socket: an agent's state is encoded,
 * decoded and checked, the machine takes it, and the machine's answers are encoded. The agents obey
 * at once, so the times are those of the server alone, on one core. Virtual time passes only where
 * a rule waits for it. */
#include "base/log.h"
#include "base/option.h"
#include "rendezvous/core/timing.h"
#include "tests/rendezvous/scale/crowd.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const char usage[] =
    "usage: dpt_scale [--nodes N] [--ranks R] [--beats B] [--rack K] [--check]\n"
    "                 [--slack S]\n"
    "\n"
    "  --nodes N  nodes (default 128)\n"
    "  --ranks R  ranks of each node (default 8)\n"
    "  --beats B  rounds of heartbeats that are measured (default 10)\n"
    "  --rack K   nodes that are lost at once in each of the last phases (default a twentieth)\n"
    "  --check    fail if a phase sends more messages or bytes, forms more generations or costs\n"
    "             more restarts than it may; with 10,000 nodes or more also if it takes too long\n"
    "  --slack S  a time may be S times its bar, on a machine with other work (default 1)\n";

/* What 10,000 nodes may take, without sockets. */
#define FORMATION_S_MAX    2.0
#define RESTART_S_MAX      1.0
#define LOSS_S_MAX         1.0
#define RACK_S_MAX         2.0
#define STEADY_PERCENT_MAX 20.0
#define MEMORY_MIB_MAX     1024.0
enum { TIMED_NODES = 10000 };

struct arguments {
    int64_t nodes, ranks, beats, rack, slack;
    bool check, help;
};

static int failures;

static void require(const struct arguments *arguments, bool holds, const char *what)
{
    if (!arguments->check || holds)
        return;
    failures++;
    printf("FAILED: %s\n", what);
}

static int64_t resident_kib(void)
{
    struct rusage usage_now;
    return getrusage(RUSAGE_SELF, &usage_now) == 0 ? usage_now.ru_maxrss : -1;
}

static double seconds_of(const struct crowd_cost *cost)
{
    return (double)(cost->core_ns + cost->decode_ns + cost->encode_ns) / 1e9;
}

/* Small crowds are only counted. */
static void require_bar(const struct arguments *arguments, double value, double most, double slack,
                        const char *what)
{
    printf("%-10s %.3f of at most %g: %s\n", "bar", value, most, what);
    if (arguments->nodes >= TIMED_NODES)
        require(arguments, value <= most * slack, what);
}

static void require_time(const struct arguments *arguments, double value, double most,
                         const char *what)
{
    require_bar(arguments, value, most, (double)arguments->slack, what);
}

/* One line: events, time of the machine and of the codec, messages and bytes sent. */
static void print_phase(const char *name, const struct crowd_cost *cost)
{
    const double events = cost->events > 0 ? (double)cost->events : 1;
    printf("%-10s %9llu events  core %9.1f ms (%7.2f us each, longest %8.2f ms)  decode %8.1f ms  "
           "encode %8.1f ms  sent %9llu messages, %10.2f MB (longest %8.1f KB)\n",
           name, (unsigned long long)cost->events, (double)cost->core_ns / 1e6,
           (double)cost->core_ns / 1e3 / events, (double)cost->longest_ns / 1e6,
           (double)cost->decode_ns / 1e6, (double)cost->encode_ns / 1e6,
           (unsigned long long)cost->sends, (double)cost->bytes / 1e6,
           (double)cost->longest_bytes / 1e3);
}

static struct crowd_cost finish_phase(struct crowd *crowd, const char *name)
{
    const struct crowd_cost cost = crowd_take_cost(crowd);
    print_phase(name, &cost);
    return cost;
}

/* ---- phases ---- */

static void measure_formation(struct crowd *crowd, const struct arguments *arguments)
{
    const uint64_t nodes = (uint64_t)arguments->nodes;
    crowd_join(crowd);
    struct crowd_cost cost = finish_phase(crowd, "join");
    const double join_s = seconds_of(&cost);
    /* Each joins with one message and is answered. The phase SETTLING is told to all. */
    require(arguments, cost.sends <= 3 * nodes, "a join sends a constant number of messages");
    crowd_form(crowd);
    cost = finish_phase(crowd, "formation");
    require(arguments, cost.sends <= 8 * nodes, "a formation sends 8 messages to a node at most");
    require_time(arguments, join_s + seconds_of(&cost), FORMATION_S_MAX,
                 "seconds from the first join to RUNNING");
    require(arguments, crowd_running(crowd) == nodes, "all nodes run");
    require(arguments, crowd_generation(crowd) == 1, "one generation is formed");
    if (nodes * (uint64_t)arguments->ranks > 1024)
        require(arguments, cost.longest_bytes <= 16 * 1024,
                "a plan of a large world has at most 16 KB");
}

static void measure_heartbeats(struct crowd *crowd, const struct arguments *arguments,
                               const char *name, uint64_t nodes)
{
    const uint64_t beats = (uint64_t)arguments->beats * nodes;
    char what[64];
    for (int64_t i = 0; i < arguments->beats; i++)
        crowd_beat(crowd);
    const struct crowd_cost cost = finish_phase(crowd, name);
    require(arguments, cost.sends == beats, "a heartbeat is answered by one message");
    require(arguments, cost.longest_bytes <= 512, "an answer without news has at most 512 bytes");
    const struct dpt_timing timing = dpt_timing_from(CROWD_TIMEOUT_MS, 0);
    const int64_t pause_ms = dpt_timing_beat_ms(&timing, (uint32_t)nodes, 0);
    const double beats_a_second = (double)nodes * 1000 / (double)pause_ms;
    (void)snprintf(what, sizeof what, "percent of a core for %s", name);
    require_time(arguments, 100 * seconds_of(&cost) / (double)beats * beats_a_second,
                 STEADY_PERCENT_MAX, what);
}

/* The ranks cannot save, as with a full disk: the run is held until an operator decides. */
static void measure_stop(struct crowd *crowd, const struct arguments *arguments)
{
    const uint64_t nodes = crowd_running(crowd);
    crowd_stop(crowd);
    (void)finish_phase(crowd, "stop");
    measure_heartbeats(crowd, arguments, "heartbeats of a held run", nodes);
}

static void measure_restart(struct crowd *crowd, const struct arguments *arguments)
{
    const uint64_t nodes = crowd_running(crowd), before = crowd_generation(crowd);
    crowd_restart(crowd);
    const struct crowd_cost cost = finish_phase(crowd, "restart");
    require_time(arguments, seconds_of(&cost), RESTART_S_MAX,
                 "seconds until a restarted server has adopted the generation");
    require(arguments, cost.sends <= 3 * nodes, "a return sends a constant number of messages");
    require(arguments, crowd_generation(crowd) == before, "a restart forms no generation");
    require(arguments, crowd_running(crowd) == nodes, "all nodes go on");
}

static void measure_loss(struct crowd *crowd, const struct arguments *arguments, const char *name,
                         uint64_t lost, double most_s)
{
    const uint64_t before = crowd_generation(crowd), left = crowd_running(crowd) - lost;
    const uint32_t restarts = crowd_restarts_left(crowd);
    crowd_lose(crowd, lost);
    const struct crowd_cost cost = finish_phase(crowd, name);
    require_time(arguments, seconds_of(&cost), most_s, "seconds for a loss");
    require(arguments, cost.sends <= 8 * (left + lost),
            "a loss sends 8 messages to a node at most");
    require(arguments, crowd_generation(crowd) == before + 1, "a loss forms one generation");
    require(arguments, crowd_restarts_left(crowd) == restarts - 1, "a loss costs one restart");
    require(arguments, crowd_running(crowd) == left, "the others run again");
}

static void measure_silence(struct crowd *crowd, const struct arguments *arguments, uint64_t lost)
{
    const uint64_t before = crowd_generation(crowd), left = crowd_running(crowd) - lost;
    const uint32_t restarts = crowd_restarts_left(crowd);
    crowd_silence(crowd, lost);
    (void)finish_phase(crowd, "silence");
    require(arguments, crowd_generation(crowd) == before + 1, "a silence forms one generation");
    require(arguments, crowd_restarts_left(crowd) == restarts - 1, "a silence costs one restart");
    require(arguments, crowd_running(crowd) == left, "the others run again");
}

static enum dpt_status parse_arguments(int argc, char **argv, struct arguments *ret,
                                       struct dpt_err *err)
{
    const struct dpt_option options[] = {
        {"--nodes", "N", .number = &ret->nodes, .min = 2, .max = CROWD_NODES_MAX},
        {"--ranks", "R", .number = &ret->ranks, .min = 1, .max = DPT_PROTO_RANKS_MAX},
        {"--beats", "B", .number = &ret->beats, .min = 1, .max = 100000},
        {"--rack", "K", .number = &ret->rack, .min = 1, .max = CROWD_NODES_MAX},
        {"--slack", "S", .number = &ret->slack, .min = 1, .max = 100},
        {"--check", .flag = &ret->check},
        {"--help", .flag = &ret->help},
    };
    for (int i = 1; i < argc; i++)
        DPT_TRY(dpt_option_read(options, sizeof options / sizeof options[0], argc, argv, &i, err));
    if (ret->rack == 0)
        ret->rack = ret->nodes / 20 + 1;
    if (3 * ret->rack + 2 >= ret->nodes)
        return dpt_fail(err, DPT_EINVAL, "--rack %lld of %lld nodes leaves too few",
                        (long long)ret->rack, (long long)ret->nodes);
    return DPT_OK;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {.nodes = 128, .ranks = 8, .beats = 10, .slack = 1};
    struct dpt_err err;
    if (parse_arguments(argc, argv, &arguments, &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt_scale: %s\n%s", err.text, usage);
        return 2;
    }
    if (arguments.help) {
        (void)fputs(usage, stdout);
        return 0;
    }
    dpt_log_set_level(DPT_LOG_ERROR);
    struct crowd *crowd = crowd_create((uint32_t)arguments.nodes, (uint32_t)arguments.ranks);
    measure_formation(crowd, &arguments);
    measure_heartbeats(crowd, &arguments, "heartbeats", (uint64_t)arguments.nodes);
    measure_restart(crowd, &arguments);
    measure_loss(crowd, &arguments, "loss", 1, LOSS_S_MAX);
    measure_loss(crowd, &arguments, "rack", (uint64_t)arguments.rack, RACK_S_MAX);
    measure_silence(crowd, &arguments, (uint64_t)arguments.rack);
    measure_restart(crowd, &arguments); /* the ranks report the generation that failed */
    measure_stop(crowd, &arguments);
    const double machine = (double)crowd_machine_bytes(crowd);
    printf("memory     %.1f MB of the machine while all nodes run, %.2f KB a node, %.2f KB a rank; "
           "the "
           "process had %.1f MiB at most\n",
           machine / 1e6, machine / 1e3 / (double)arguments.nodes,
           machine / 1e3 / (double)(arguments.nodes * arguments.ranks),
           (double)resident_kib() / 1024);
    require_bar(&arguments, (double)resident_kib() / 1024, MEMORY_MIB_MAX, 1, "MiB of the process");
    crowd_destroy(&crowd);
    return failures == 0 ? 0 : 1;
}
