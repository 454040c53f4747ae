/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Doubly linked lists whose links lie in their members. */
#ifndef LIST_H
#define LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next;
    struct list *before;
};

#define LIST_MEMBER(link, type, field) ((type *)((char *)(link)-offsetof(type, field)))

/* Runs for each link; the current one may be removed. */
#define LIST_FOR_EACH(link, members)                                                        \
    for (struct list *link = (members)->next, *link##_next = link->next; link != (members); \
         link = link##_next, link##_next = link->next)

static inline void list_init(struct list *list)
{
    list->next = list;
    list->before = list;
}

static inline bool list_is_empty(const struct list *list)
{
    return list->next == list;
}

static inline void list_append(struct list *list, struct list *link)
{
    link->next = list;
    link->before = list->before;
    list->before->next = link;
    list->before = link;
}

static inline void list_remove(struct list *link)
{
    link->before->next = link->next;
    link->next->before = link->before;
    list_init(link);
}

#endif
