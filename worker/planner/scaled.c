/* Numbers with a unit: see scaled.h. */
#include "worker/planner/scaled.h"

#include "base/parse.h"

#include <string.h>

enum { NUMBER_BYTES = 64 };

static const struct unit {
    enum dpt_scaled_kind kind;
    const char *name;
    double factor;
} units[] = {
    {DPT_SCALED_COUNT, "K", 1e3},      {DPT_SCALED_COUNT, "M", 1e6},
    {DPT_SCALED_COUNT, "B", 1e9},      {DPT_SCALED_COUNT, "T", 1e12},
    {DPT_SCALED_BYTES, "KB", 1e3},     {DPT_SCALED_BYTES, "MB", 1e6},
    {DPT_SCALED_BYTES, "GB", 1e9},     {DPT_SCALED_BYTES, "TB", 1e12},
    {DPT_SCALED_BYTES, "KiB", 0x1p10}, {DPT_SCALED_BYTES, "MiB", 0x1p20},
    {DPT_SCALED_BYTES, "GiB", 0x1p30}, {DPT_SCALED_BYTES, "TiB", 0x1p40},
    {DPT_SCALED_BYTES, "Mbit", 125e3}, {DPT_SCALED_BYTES, "Gbit", 125e6},
    {DPT_SCALED_FLOPS, "G", 1e9},      {DPT_SCALED_FLOPS, "T", 1e12},
    {DPT_SCALED_FLOPS, "P", 1e15},
};

static const char *const unit_names[] = {
    [DPT_SCALED_COUNT] = ", with K, M, B or T or without",
    [DPT_SCALED_BYTES] = " of bytes, with KB to TB, KiB to TiB, Mbit or Gbit or without",
    [DPT_SCALED_FLOPS] = ", with G, T or P or without",
    [DPT_SCALED_PLAIN] = "",
};

/* The factor of the letters behind the number; 0: no such unit. */
static double unit_factor(enum dpt_scaled_kind kind, const char *name)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i].kind == kind && strcmp(units[i].name, name) == 0)
            return units[i].factor;
    return *name == '\0' ? 1 : 0;
}

enum dpt_status dpt_scaled_parse(const char *text, enum dpt_scaled_kind kind, double *ret,
                                 struct dpt_err *err)
{
    char number[NUMBER_BYTES];
    double value = 0;
    const size_t digits = strspn(text, "0123456789.e+-");
    const double factor = unit_factor(kind, text + digits);
    if (digits < sizeof number) {
        memcpy(number, text, digits);
        number[digits] = '\0';
        if (factor > 0 && dpt_parse_double(number, &value, NULL) == DPT_OK && value > 0 &&
            value <= 1e30) {
            *ret = value * factor;
            return DPT_OK;
        }
    }
    return dpt_fail(err, DPT_EINVAL, "expected a number above 0%s, got '%.40s'", unit_names[kind],
                    text);
}
