/* Numbers of the page: units, decimals, cells of tables. */
#ifndef DPT_WORKER_REPORT_PAGE_NUMBER_H
#define DPT_WORKER_REPORT_PAGE_NUMBER_H

#include "base/number.h"

#include <stdint.h>
#include <stdio.h>

/* The unit of a column, so that all of its numbers have one unit and as many decimals. */
struct page_unit {
    const char *name;
    double size;  /* in nanoseconds or bytes */
    int decimals; /* of all numbers in this unit */
};

/* The units in which the largest value of a column is easy to read. A value that is not finite
 * counts as 0. page_bytes_unit has powers of 1,000, as bandwidths have; page_memory_unit of 1,024.
 */
struct page_unit page_time_unit(double largest_ns);
struct page_unit page_bytes_unit(double largest_bytes);
struct page_unit page_memory_unit(double largest_bytes);

/* A figure of the report as a double; REPORT_UNKNOWN becomes NAN. */
double page_known(int64_t figure);

/* The number with commas; a number that is not finite becomes "–". Returns `ret`. */
const char *page_number(double value, int decimals, char ret[DPT_NUMBER_BYTES]);

/* Write <td>…</td>. page_cell_in: `value` in nanoseconds or bytes. */
void page_cell(FILE *out, double value, int decimals);
void page_cell_in(FILE *out, const struct page_unit *unit, double value);

/* Writes a head of a column with the unit below the name; `unit` NULL: none. */
void page_head(FILE *out, const char *name, const char *unit);

/* The part `value` of `whole` in percent, from 0 to 100; 0 if one is not finite. */
double page_percent(double value, double whole);

#endif
