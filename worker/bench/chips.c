/* The table of chips.h. The first entry that is part of the chip's name counts. */
#include "worker/bench/chips.h"

#include <stddef.h>
#include <string.h>

/* From NVIDIA's data sheets, without sparsity. */
static const struct {
    const char *name;
    double tflops;
} chips[] = {
    {"B200", 2250},     {"B100", 1750},    {"GH200", 989.4},    {"H200", 989.4},
    {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989.4},     {"A100", 312},
    {"A800", 312},      {"L40S", 362},     {"L40", 181},        {"L4", 121},
    {"A10G", 70},       {"A10", 125},      {"RTX 4090", 165.2}, {"RTX 3090", 71},
};

double dpt_chip_peak(const char *name)
{
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (strstr(name, chips[i].name))
            return chips[i].tflops * 1e12;
    return 0;
}

double dpt_mfu(double tokens_per_s, double parameters, int layers, int channels, int seq,
               double peak)
{
    const double flops = 6 * parameters + 6.0 * layers * channels * seq;
    return tokens_per_s * flops / peak;
}
