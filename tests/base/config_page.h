/* docs/config.md, the reference page of the config keys. */
#ifndef DPT_TESTS_BASE_CONFIG_PAGE_H
#define DPT_TESTS_BASE_CONFIG_PAGE_H

#include <stdio.h>

/* Prints the table of keys as Markdown. */
void print_config_page(FILE *out);

#endif
