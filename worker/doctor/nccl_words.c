/* Names and pieces of NCCL's lines (nccl_words.h). */
#include "worker/doctor/nccl_words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ---- */

static const char *const collective_names[DPT_NCCL_COLLECTIVES] = {
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
/* In the order of NCCL's numbers. Lines of 2.24 and newer have the second form. */
static const struct {
    const char *name, *in_lines;
} algorithm_names[DPT_NCCL_ALGORITHMS] = {{"Tree", "TREE"},
                                          {"Ring", "RING"},
                                          {"CollNetDirect", "COLLNET_DIRECT"},
                                          {"CollNetChain", "COLLNET_CHAIN"},
                                          {"NVLS", "NVLS"},
                                          {"NVLSTree", "NVLS_TREE"},
                                          {"PAT", "PAT"}};
static const char *const protocol_names[DPT_NCCL_PROTOCOLS] = {"LL", "LL128", "Simple"};

const char *dpt_nccl_collective_name(int collective)
{
    return collective_names[collective];
}

const char *dpt_nccl_algorithm_name(int algorithm)
{
    return algorithm_names[algorithm].name;
}

const char *dpt_nccl_protocol_name(int protocol)
{
    return protocol_names[protocol];
}

int dpt_nccl_find_collective(const char *name)
{
    for (int i = 0; i < DPT_NCCL_COLLECTIVES; i++)
        if (strcmp(name, collective_names[i]) == 0)
            return i;
    return -1;
}

int dpt_nccl_find_algorithm(const char *name)
{
    for (int i = 0; i < DPT_NCCL_ALGORITHMS; i++)
        if (strcmp(name, algorithm_names[i].name) == 0 ||
            strcmp(name, algorithm_names[i].in_lines) == 0 ||
            (name[0] == '0' + i && name[1] == '\0'))
            return i;
    return -1;
}

int dpt_nccl_find_protocol(const char *name)
{
    for (int i = 0; i < DPT_NCCL_PROTOCOLS; i++)
        if (strcasecmp(name, protocol_names[i]) == 0 || (name[0] == '0' + i && name[1] == '\0'))
            return i;
    return -1;
}

/* ---- pieces of a line ---- */

bool dpt_nccl_take_text(const char **at, const char *text)
{
    const size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0)
        return false;
    *at += length;
    return true;
}

bool dpt_nccl_take_word(const char **at, char ret[DPT_NCCL_NAME_BYTES])
{
    size_t n = 0;
    while (isalnum((unsigned char)(*at)[n]) || (*at)[n] == '_')
        n++;
    if (n == 0 || n >= DPT_NCCL_NAME_BYTES)
        return false;
    memcpy(ret, *at, n);
    ret[n] = '\0';
    *at += n;
    return true;
}

bool dpt_nccl_take_size(const char **at, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    const char *end = *at;
    for (; isdigit((unsigned char)*end); end++) {
        if (value > max / 10)
            return false;
        value = value * 10 + (uint64_t)(*end - '0');
    }
    if (end == *at || value > max)
        return false;
    *ret = value;
    *at = end;
    return true;
}

bool dpt_nccl_take_decimal(const char **at, size_t places, double *ret)
{
    char *end;
    const size_t whole = strspn(*at, "0123456789");
    if (whole == 0 || whole > 15 || (*at)[whole] != '.' ||
        strspn(*at + whole + 1, "0123456789") != places)
        return false;
    *ret = strtod(*at, &end);
    *at = end;
    return true;
}

bool dpt_nccl_is_end(const char *at)
{
    return at[strspn(at, " \t\r")] == '\0';
}
