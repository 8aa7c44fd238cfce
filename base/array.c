/* Growing arrays (array.h). */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_MIN = 16 };

bool dpt_array_reserve(void *array, size_t *room, size_t n, size_t bytes)
{
    size_t more = 2 * *room + ROOM_MIN;
    void *old, *grown;
    if (n <= *room)
        return true;
    more = more > n ? more : n;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, more * bytes);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *room = more;
    return true;
}
