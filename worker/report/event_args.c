/* Names and arguments of events (event_args.h). */
#include "worker/report/event_args.h"

#include <math.h>
#include <string.h>

static bool starts_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool contains_text(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* "cuda", any bytes, "LaunchKernel" */
static bool is_launch(const char *name)
{
    const char *cuda = strstr(name, "cuda");
    return cuda && strstr(cuda + 4, "LaunchKernel") != NULL;
}

enum report_kernel_class report_kernel_class_of(const char *name)
{
    static const char *const neither[] = {"Stream Wait Event",
                                          "runFunction",
                                          "job_exe",
                                          "packet",
                                          "pe_exe",
                                          "cpum_exe_subgraph",
                                          "collective_subgraph_execution"};
    if (starts_with(name, "nccl") || starts_with(name, "hccl") || contains_text(name, "ncclKernel"))
        return REPORT_COMMUNICATES;
    if (starts_with(name, "hip"))
        return REPORT_COMMUNICATES;
    if (starts_with(name, "Memcpy") || starts_with(name, "Memset") || starts_with(name, "dma"))
        return REPORT_MOVES;
    if (contains_text(name, "Memcpy") || contains_text(name, "Memset") ||
        contains_text(name, "dma") || contains_text(name, "Sync") || is_launch(name))
        return REPORT_NEITHER;
    for (size_t i = 0; i < sizeof neither / sizeof *neither; i++)
        if (starts_with(name, neither[i]))
            return REPORT_NEITHER;
    return REPORT_COMPUTES;
}

static enum dpt_report_collective_kind collective_kind(const char *text)
{
    static const struct {
        const char *part;
        enum dpt_report_collective_kind kind;
    } parts[] = {
        {"allreduce", REPORT_ALL_REDUCE},
        {"all_reduce", REPORT_ALL_REDUCE},
        {"AllReduce", REPORT_ALL_REDUCE},
        {"reduce_scatter", REPORT_REDUCE_SCATTER},
        {"ReduceScatter", REPORT_REDUCE_SCATTER},
        {"allgather", REPORT_ALL_GATHER},
        {"all_gather", REPORT_ALL_GATHER},
        {"AllGather", REPORT_ALL_GATHER},
        {"broadcast", REPORT_BROADCAST},
        {"Broadcast", REPORT_BROADCAST},
        {"alltoall", REPORT_ALL_TO_ALL},
        {"all_to_all", REPORT_ALL_TO_ALL},
        {"AllToAll", REPORT_ALL_TO_ALL},
        {"send", REPORT_SEND_RECV},
        {"recv", REPORT_SEND_RECV},
        {"SendRecv", REPORT_SEND_RECV},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (contains_text(text, parts[i].part))
            return parts[i].kind;
    return REPORT_OTHER_COLLECTIVE;
}

/* Bytes of an element, by PyTorch's name of its type; NaN: not known. */
static double element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"Float", 4}, {"Half", 2}, {"BFloat16", 2}, {"Double", 8}, {"Int", 4},
                 {"Long", 8},  {"Byte", 1}, {"Char", 1},     {"Bool", 1},   {"Short", 2}};
    for (size_t i = 0; dtype && i < sizeof types / sizeof *types; i++)
        if (strcmp(dtype, types[i].name) == 0)
            return types[i].bytes;
    return dtype && starts_with(dtype, "Float8") ? 1 : (double)NAN;
}

static double number_in_args(const json_t *args, const char *key)
{
    const json_t *value = json_object_get(args, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

struct report_detail report_collective_detail(const char *name, const json_t *args)
{
    const char *call = json_string_value(json_object_get(args, "Collective name"));
    const char *dtype = json_string_value(json_object_get(args, "dtype"));
    const double in = number_in_args(args, "In msg nelems"),
                 out = number_in_args(args, "Out msg nelems"),
                 group = number_in_args(args, "Group size");
    const bool has_call = call && collective_kind(call) != REPORT_OTHER_COLLECTIVE;
    return (struct report_detail){
        .collective = collective_kind(has_call ? call : name),
        .bytes = fmax(in, out) * element_bytes(dtype),
        .group_size = group >= 1 && group <= 1 << 20 ? (int)group : 0,
        .peer = REPORT_UNKNOWN,
    };
}

/* Elements of the first tensor in [[2, 3], []]. */
static double first_input_elements(const json_t *dims)
{
    const json_t *first = json_array_get(dims, 0);
    double elements = 1;
    size_t i;
    json_t *size;
    if (json_array_size(first) == 0)
        return 0;
    json_array_foreach(first, i, size) elements *= json_number_value(size);
    return elements;
}

bool report_host_detail(const json_t *args, struct report_detail *ret)
{
    const double batch = number_in_args(args, "batch"),
                 positions = number_in_args(args, "positions"), peer = number_in_args(args, "peer");
    const json_t *dims = json_object_get(args, "Input Dims");
    *ret = (struct report_detail){.bytes = (double)NAN, .peer = REPORT_UNKNOWN};
    if (peer >= 0 && peer <= 1 << 20) {
        ret->peer = (int)peer;
        return true;
    }
    if (isfinite(batch) && isfinite(positions) && json_object_get(args, "unit"))
        ret->work = batch * positions;
    else if (dims)
        ret->work = first_input_elements(dims);
    return ret->work > 0;
}
