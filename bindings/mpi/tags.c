/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Allocates tag numbers, and reuses returned ones. */

#include <pthread.h>
#include <stdlib.h>

#include "tags.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int next, limit;
/* Stack of returned numbers. It has at most as many as were ever in use at once. */
static int *returned, returned_count, returned_room;

void kumi_tags_begin(int tag_max)
{
    limit = tag_max / KUMI_TAG_KINDS;
}

int kumi_tag_take(void)
{
    pthread_mutex_lock(&lock);
    int number = returned_count > 0 ? returned[--returned_count] : next < limit ? next++ : -1;
    pthread_mutex_unlock(&lock);
    return number;
}

void kumi_tag_give_back(int number)
{
    if (number < 0)
        return;
    pthread_mutex_lock(&lock);
    if (returned_count == returned_room) {
        int room = returned_room == 0 ? 16 : 2 * returned_room;
        int *grown = realloc(returned, (size_t)room * sizeof(*grown));
        if (grown != NULL) {
            returned = grown;
            returned_room = room;
        }
    }
    /*
     * Without memory the number is lost. This is harmless, because the next unused one is taken
     * instead.
     */
    if (returned_count < returned_room)
        returned[returned_count++] = number;
    pthread_mutex_unlock(&lock);
}
