/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Letters between the members of a team. Member m sends to m + 1, m + 2, m + 4 and so on, and there
 * is a box for each of these rounds: a ring of slots in symmetric memory.
 *
 *     slot:  number | digest | bytes
 *
 * A letter is one put. It is read by the receiver when its number is the expected one and its
 * digest is that of the bytes, so no second message says that it is complete, whatever the order in
 * which the bytes are written. The receiver puts the number of letters that it has read to the
 * sender now and then, which waits when the ring is full.
 *
 * The boxes of active sets are by pairs of PEs, because no call agrees on a box.
 */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "job.h"
#include "team.h"

enum { SLOTS = LETTERS_AHEAD + 1, TEAM_SLOT_BYTES = 1040, PAIR_SLOT_BYTES = 128 };

struct letter_head {
    uint64_t number;
    uint64_t digest;
};

/*
 * Progress of one box: letters that this PE has sent to it at another one, and read from its own.
 */
struct box {
    uint64_t sent;
    uint64_t read;
};

/* Boxes of teams by index and round; boxes of pairs by PE. */
static struct box team_boxes[TEAMS_MAX][ROUNDS_MAX];
static struct box *pair_boxes;
/* Offsets in the library's own memory, of the rings and of the numbers of letters read. */
static size_t team_rings, team_reads, pair_rings, pair_reads;

size_t mail_start(size_t offset)
{
    team_reads = offset;
    pair_reads = team_reads + sizeof(uint64_t) * TEAMS_MAX * ROUNDS_MAX;
    team_rings = pair_reads + sizeof(uint64_t) * (size_t)job.count;
    pair_rings = team_rings + (size_t)SLOTS * TEAM_SLOT_BYTES * TEAMS_MAX * ROUNDS_MAX;
    pair_boxes = calloc((size_t)job.count, sizeof *pair_boxes);
    memset(team_boxes, 0, sizeof team_boxes);
    size_t end = pair_rings + (size_t)SLOTS * PAIR_SLOT_BYTES * (size_t)job.count;
    return (end + 4095) & ~(size_t)4095;
}

void mail_stop(void)
{
    free(pair_boxes);
    pair_boxes = NULL;
}

void mail_renew(const struct kumi_shmem_team *team)
{
    for (int round = 0; round < ROUNDS_MAX; round++)
        team_boxes[team->index][round] = (struct box){first_number(team), first_number(team)};
}

static bool is_active_set(const struct kumi_shmem_team *team)
{
    return team->index == ACTIVE_SET;
}

static size_t slot_bytes(const struct kumi_shmem_team *team)
{
    return is_active_set(team) ? PAIR_SLOT_BYTES : TEAM_SLOT_BYTES;
}

size_t letter_bytes_max(const struct kumi_shmem_team *team)
{
    return slot_bytes(team) - sizeof(struct letter_head);
}

static uint64_t digest(uint64_t number, const unsigned char *bytes, size_t count)
{
    const uint64_t factor = 0x9e3779b97f4a7c15ull;
    uint64_t digest = (number ^ count) * factor;
    for (size_t at = 0; at < count; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, count - at < 8 ? count - at : 8);
        digest = (digest ^ word) * factor;
        digest ^= digest >> 29;
    }
    return digest;
}

/* Returns the ring in which `writer` puts its letters to `reader`, as an offset. */
static size_t ring(const struct kumi_shmem_team *team, int round, int writer)
{
    if (is_active_set(team))
        return pair_rings + (size_t)SLOTS * PAIR_SLOT_BYTES * (size_t)writer;
    return team_rings + (size_t)SLOTS * TEAM_SLOT_BYTES * (size_t)(team->index * ROUNDS_MAX + round);
}

/* Returns the word of the writer that `reader` sets, as an offset. */
static size_t read_word(const struct kumi_shmem_team *team, int round, int reader)
{
    if (is_active_set(team))
        return pair_reads + sizeof(uint64_t) * (size_t)reader;
    return team_reads + sizeof(uint64_t) * (size_t)(team->index * ROUNDS_MAX + round);
}

static struct box *box_of(const struct kumi_shmem_team *team, int round, int pe)
{
    return is_active_set(team) ? &pair_boxes[pe] : &team_boxes[team->index][round];
}

void post(const char *call, int pe, size_t offset, const void *data, size_t bytes)
{
    char error[256];
    struct kumi_wind_place place = own_place(offset, pe);
    uint32_t peer = job.peers[pe];
    int outcome;
    if (kumi_wind_peer_has_kernel(job.node, peer))
        outcome = kumi_wind_post_put(job.node, peer, &place, data, bytes, error, sizeof error);
    else
        outcome = kumi_wind_send_to(job.node, peer, KUMI_WIND_UNORDERED, KUMI_WIND_DIRECT_MAP, &place, NULL,
                                    0, data, bytes, error, sizeof error);
    check(call, pe, outcome, error);
}

/*
 * Tells the writer of a box how many letters were read. The messages stay in order: a number that
 * came late over a newer one would close slots that are free, and members that wait for each
 * other's slots would wait for ever.
 */
static void tell_read(const char *call, int pe, size_t offset, uint64_t number)
{
    char error[256];
    struct kumi_wind_place place = own_place(offset, pe);
    int outcome = kumi_wind_send_to(job.node, job.peers[pe], KUMI_WIND_ORDERED, KUMI_WIND_DIRECT_MAP, &place,
                                    NULL, 0, &number, sizeof number, error, sizeof error);
    check(call, pe, outcome, error);
}

void send_letter(const char *call, const struct kumi_shmem_team *team, int round, const void *data,
                 size_t bytes)
{
    int to = team_pe(team, (int)((team->me + (1ll << round)) % team->count));
    struct box *box = box_of(team, round, to);
    uint64_t number = ++box->sent;
    const uint64_t *reads = (const uint64_t *)(job.heap.base + read_word(team, round, to));
    struct waiting waiting = {.call = call, .from = to + 1};
    /* A word of an earlier generation is lower than the first number. */
    uint64_t base = first_number(team);
    for (;;) {
        uint64_t read = __atomic_load_n(reads, __ATOMIC_ACQUIRE);
        read = read < base ? base : read;
        if (number <= read + SLOTS)
            break;
        wait_turn(&waiting);
    }
    unsigned char letter[TEAM_SLOT_BYTES];
    struct letter_head head = {number, digest(number, data, bytes)};
    memcpy(letter, &head, sizeof head);
    if (bytes > 0)
        memcpy(letter + sizeof head, data, bytes);
    post(call, to, ring(team, round, job.me) + number % SLOTS * slot_bytes(team), letter,
         sizeof head + bytes);
}

void receive_letter(const char *call, const struct kumi_shmem_team *team, int round, void *data, size_t bytes)
{
    long long before = (team->me - (1ll << round)) % team->count;
    int from = team_pe(team, (int)(before < 0 ? before + team->count : before));
    struct box *box = box_of(team, round, from);
    uint64_t number = ++box->read;
    const char *slot = job.heap.base + ring(team, round, from) + number % SLOTS * slot_bytes(team);
    struct waiting waiting = {.call = call, .from = from + 1};
    for (;;) {
        struct letter_head head = {__atomic_load_n((const uint64_t *)slot, __ATOMIC_ACQUIRE), 0};
        if (head.number == number) {
            memcpy(&head, slot, sizeof head);
            memcpy(data, slot + sizeof head, bytes);
            if (head.digest == digest(number, data, bytes))
                break;
        }
        wait_turn(&waiting);
    }
    if (number % (SLOTS / 2) == 0)
        tell_read(call, from, read_word(team, round, job.me), number);
}
