/* dpt-config-doc: prints the reference page of the config keys, docs/config.md. */
#include "base/config.h"

#include <stdio.h>

int main(void)
{
    dpt_config_markdown(stdout);
    return fflush(stdout) == 0 ? 0 : 1;
}
