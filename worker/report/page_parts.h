/* The parts of a report's page. Each function writes one section, or nothing if the report has no
 * figure for it. */
#ifndef DPT_WORKER_REPORT_PAGE_PARTS_H
#define DPT_WORKER_REPORT_PAGE_PARTS_H

#include "worker/report/figures.h"

#include <stdio.h>

enum {
    PAGE_DENSE_RANKS = 16,    /* more ranks have low rows */
    PAGE_RANKS_OPEN = 8,      /* more ranks are in a part that opens */
    PAGE_NAME_CHARACTERS = 60 /* longer names of ops and strategies are shortened */
};

/* ---- page_summary.c ---- */
void page_write_verdict(FILE *out, const struct dpt_report *report);
/* The figures of the run as tiles. */
void page_write_tiles(FILE *out, const struct dpt_report *report);
/* Events that were dropped and clocks that differ; source files; how the figures are counted. */
void page_write_notes(FILE *out, const struct dpt_report *report);

/* ---- page_breakdown.c: one bar a rank, one bar a report ---- */
void page_write_breakdown(FILE *out, const struct dpt_report *report);
void page_write_compared_breakdown(FILE *out, const struct dpt_report *reports, size_t n);

/* ---- page_timeline.c ---- */
void page_write_timeline(FILE *out, const struct dpt_report *report);

/* ---- page_tables.c ---- */
void page_write_rank_table(FILE *out, const struct dpt_report *report);
void page_write_phase_table(FILE *out, const struct dpt_report *report);

/* ---- page_collectives.c ---- */
void page_write_collectives(FILE *out, const struct dpt_report *report);

/* ---- page_ops.c ---- */
void page_write_ops(FILE *out, const struct dpt_report *report);

/* ---- page_curves.c ---- */
void page_write_steps(FILE *out, const struct dpt_report *report);
void page_write_memory(FILE *out, const struct dpt_report *report);

/* ---- page_compare.c ---- */
void page_write_comparison(FILE *out, const struct dpt_report *reports, size_t n);

/* ---- page_rank.c ---- */
/* "rank 3" as the head of a row. */
void page_rank_head(FILE *out, int rank);
/* Opens a part for the ranks from `open` on, if there are more: <details> with "56 more ranks". */
void page_more_ranks_begin(FILE *out, size_t i, size_t n_ranks);
void page_more_ranks_end(FILE *out, size_t n_ranks);

#endif
