/* Numbers of the page: units, decimals, cells of tables. */
#include "worker/report/page_number.h"

#include "worker/html/text.h"
#include "worker/report/figures.h"

#include <math.h>

struct step {
    double from; /* the least value of the unit */
    struct page_unit unit;
};

/* The first line whose `from` the value reaches; of the last line it is 0. */
static struct page_unit choose_unit(const struct step *steps, double largest)
{
    const double value = isfinite(largest) ? largest : 0;
    while (value < steps->from)
        steps++;
    return steps->unit;
}

struct page_unit page_time_unit(double largest_ns)
{
    static const struct step steps[] = {{1e11, {"s", 1e9, 1}}, {1e10, {"s", 1e9, 2}},
                                        {1e9, {"ms", 1e6, 0}}, {1e8, {"ms", 1e6, 1}},
                                        {1e6, {"ms", 1e6, 2}}, {0, {"µs", 1e3, 1}}};
    return choose_unit(steps, largest_ns);
}

struct page_unit page_bytes_unit(double largest_bytes)
{
    static const struct step steps[] = {{1e10, {"GB", 1e9, 2}},
                                        {1e8, {"MB", 1e6, 0}},
                                        {1e5, {"MB", 1e6, 2}},
                                        {1e3, {"kB", 1e3, 1}},
                                        {0, {"bytes", 1, 0}}};
    return choose_unit(steps, largest_bytes);
}

struct page_unit page_memory_unit(double largest_bytes)
{
    static const double kib = 1024.0, mib = 1048576.0, gib = 1073741824.0;
    const struct step steps[] = {{10 * gib, {"GiB", gib, 2}},
                                 {100 * mib, {"MiB", mib, 0}},
                                 {mib, {"MiB", mib, 2}},
                                 {0, {"KiB", kib, 1}}};
    return choose_unit(steps, largest_bytes);
}

double page_known(int64_t figure)
{
    return figure == REPORT_UNKNOWN ? (double)NAN : (double)figure;
}

const char *page_number(double value, int decimals, char ret[DPT_NUMBER_BYTES])
{
    if (isfinite(value))
        return dpt_number_grouped(value, decimals, ret);
    (void)snprintf(ret, DPT_NUMBER_BYTES, "–");
    return ret;
}

void page_cell(FILE *out, double value, int decimals)
{
    char text[DPT_NUMBER_BYTES];
    (void)fprintf(out, "<td>%s</td>", page_number(value, decimals, text));
}

void page_cell_in(FILE *out, const struct page_unit *unit, double value)
{
    page_cell(out, value / unit->size, unit->decimals);
}

void page_head(FILE *out, const char *name, const char *unit)
{
    (void)fputs("<th scope=\"col\">", out);
    dpt_html_text(out, name);
    if (unit)
        (void)fprintf(out, "<br/>%s", unit);
    (void)fputs("</th>", out);
}

double page_percent(double value, double whole)
{
    if (!isfinite(value) || !isfinite(whole) || whole <= 0)
        return 0;
    return fmin(100, fmax(0, 100 * value / whole));
}
