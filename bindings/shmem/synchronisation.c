/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Synchronisation of the members of a team (9.9.3), over a tree:
 *
 *             0
 *      ┌───┬──┴┬───┐        a member whose children have arrived tells its parent,
 *      1   2   3   4        and from the root on each tells its children that all have
 *    ┌─┴─┐
 *    5 .. 8
 *
 * A member has a word for each child, and one for its parent. Each is set to the number of the
 * synchronisation by one put. With 2 (n - 1) puts it costs less processor time than dissemination
 * with n ⌈log₂ n⌉, which counts where hosts have more PEs than processors. No word gets its next
 * number before its reader has seen this one, because the writer waits for the reader in between.
 */
#include <string.h>

#include "team.h"

enum { CHILDREN_MAX = 4, WORDS = CHILDREN_MAX + 1, PARENT = CHILDREN_MAX };

/* Synchronisations of each team's boxes. */
static uint64_t numbers[TEAMS_MAX];
/* Offset of the words in the library's own memory. */
static size_t words;

size_t synchronisation_start(size_t offset)
{
    words = offset;
    memset(numbers, 0, sizeof numbers);
    size_t end = words + sizeof(uint64_t) * TEAMS_MAX * WORDS;
    return (end + 4095) & ~(size_t)4095;
}

void synchronisation_renew(const struct kumi_shmem_team *team)
{
    numbers[team->index] = first_number(team);
}

static size_t word(const struct kumi_shmem_team *team, int which)
{
    return words + sizeof(uint64_t) * (size_t)(team->index * WORDS + which);
}

/* Waits until another member has set a word to `number`. */
static void await(const char *call, const struct kumi_shmem_team *team, int which, int member,
                  uint64_t number)
{
    const uint64_t *at = (const uint64_t *)(job.heap.base + word(team, which));
    struct waiting waiting = {.call = call, .from = team_pe(team, member) + 1};
    while (__atomic_load_n(at, __ATOMIC_ACQUIRE) != number)
        wait_turn(&waiting);
}

static void tell(const char *call, const struct kumi_shmem_team *team, int which, int member, uint64_t number)
{
    post(call, team_pe(team, member), word(team, which), &number, sizeof number);
}

/* An active set has no words that its members agree on. */
static void disseminate(const char *call, const struct kumi_shmem_team *team)
{
    for (int round = 0; 1ll << round < team->count; round++) {
        send_letter(call, team, round, NULL, 0);
        receive_letter(call, team, round, NULL, 0);
    }
}

void team_sync(const char *call, const struct kumi_shmem_team *team)
{
    if (team->index == ACTIVE_SET) {
        disseminate(call, team);
        return;
    }
    uint64_t number = ++numbers[team->index];
    long long first = (long long)team->me * CHILDREN_MAX + 1, end = first + CHILDREN_MAX;
    end = end < team->count ? end : team->count;
    for (long long child = first; child < end; child++)
        await(call, team, (int)(child - first), (int)child, number);
    if (team->me > 0) {
        int parent = (team->me - 1) / CHILDREN_MAX;
        tell(call, team, (team->me - 1) % CHILDREN_MAX, parent, number);
        await(call, team, PARENT, parent, number);
    }
    for (long long child = first; child < end; child++)
        tell(call, team, PARENT, (int)child, number);
}
