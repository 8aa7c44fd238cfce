/* dpt-config-doc: prints the reference page of the config keys, docs/config.md. */
#include "tests/base/config_page.h"

int main(void)
{
    print_config_page(stdout);
    return fflush(stdout) == 0 ? 0 : 1;
}
