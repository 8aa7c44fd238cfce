/* Ranks in tables and lists of the page. */
#include "worker/report/page_parts.h"

void page_rank_head(FILE *out, int rank)
{
    (void)fprintf(out, "<th scope=\"row\">rank %d</th>", rank);
}

void page_more_ranks_begin(FILE *out, size_t i, size_t n_ranks)
{
    if (i == PAGE_RANKS_OPEN && n_ranks > PAGE_RANKS_OPEN)
        (void)fprintf(out, "<details><summary>%zu more rank%s</summary>\n",
                      n_ranks - PAGE_RANKS_OPEN, n_ranks - PAGE_RANKS_OPEN == 1 ? "" : "s");
}

void page_more_ranks_end(FILE *out, size_t n_ranks)
{
    if (n_ranks > PAGE_RANKS_OPEN)
        (void)fputs("</details>\n", out);
}
