/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Teams. Each is an arithmetic sequence of PEs, as all that the specification can create are. */
#include "team.h"

#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "job.h"

static struct kumi_shmem_team world, shared;

/* Boxes that are free, as bits; and the generation of the last team of this PE. */
static uint64_t free_boxes;
static uint64_t last_generation;

enum { WORLD_BOXES, SHARED_BOXES, FIRST_FREE_BOXES };

void teams_start(void)
{
    world = (struct kumi_shmem_team){.stride = 1, .count = job.count, .me = job.me, .index = WORLD_BOXES};
    /* No other PE's memory can be used through a pointer. */
    shared = (struct kumi_shmem_team){.start = job.me, .stride = 1, .count = 1, .index = SHARED_BOXES};
    free_boxes = ~0ull << FIRST_FREE_BOXES;
    last_generation = 0;
}

struct kumi_shmem_team *team_of(const char *call, shmem_team_t handle)
{
    check_started(call);
    if (handle == SHMEM_TEAM_WORLD)
        return &world;
    if (handle == SHMEM_TEAM_SHARED)
        return &shared;
    if (handle == SHMEM_TEAM_INVALID)
        fail(call, "the team is SHMEM_TEAM_INVALID");
    return handle;
}

int team_member(const struct kumi_shmem_team *team, int pe)
{
    int distance = pe - team->start;
    if (team->count == 1 || team->stride == 0)
        return distance == 0 ? 0 : -1;
    int member = distance / team->stride;
    return distance % team->stride == 0 && member >= 0 && member < team->count ? member : -1;
}

/* A member's part of the agreement on the boxes of new teams. */
struct offer {
    uint64_t free_boxes;
    uint64_t generation;
    /* Sum of the arguments, to find a member that has others. */
    int64_t arguments[3];
};

/* Agrees with all members of a team. Returns false if members have different arguments. */
static bool agree(const char *call, const struct kumi_shmem_team *parent, struct offer *offer)
{
    struct offer *offers = calloc((size_t)parent->count, sizeof *offers);
    offer->free_boxes = free_boxes;
    offer->generation = last_generation;
    gather_all(call, parent, offers, offer, sizeof *offer);
    bool is_equal = true;
    for (int member = 0; member < parent->count; member++) {
        is_equal &= memcmp(offers[member].arguments, offer->arguments, sizeof offer->arguments) == 0;
        offer->free_boxes &= offers[member].free_boxes;
        if (offers[member].generation > offer->generation)
            offer->generation = offers[member].generation;
    }
    free(offers);
    last_generation = ++offer->generation;
    return is_equal;
}

/* Takes boxes that are free at all members, and creates the team if this PE is in it. */
static shmem_team_t create(const struct kumi_shmem_team *parent, int start, int stride, int count,
                           const struct offer *offer, uint64_t boxes, const shmem_team_config_t *config,
                           long mask)
{
    struct kumi_shmem_team made = {
        .start = team_pe(parent, start),
        .stride = stride * parent->stride,
        .count = count,
        .index = __builtin_ctzll(boxes),
        .generation = offer->generation,
        .num_contexts = config != NULL && (mask & SHMEM_TEAM_NUM_CONTEXTS) ? config->num_contexts : 0,
    };
    made.me = team_member(&made, job.me);
    if (made.me < 0)
        return SHMEM_TEAM_INVALID;
    free_boxes &= ~(1ull << made.index);
    struct kumi_shmem_team *team = malloc(sizeof *team);
    *team = made;
    mail_renew(team);
    synchronisation_renew(team);
    return team;
}

static bool is_known(long config_mask, const shmem_team_config_t *config)
{
    return (config_mask & ~SHMEM_TEAM_NUM_CONTEXTS) == 0 && (config_mask == 0 || config != NULL);
}

PUBLIC int shmem_team_split_strided(shmem_team_t parent_team, int start, int stride, int size,
                                    const shmem_team_config_t *config, long config_mask,
                                    shmem_team_t *new_team)
{
    static const char *call = "shmem_team_split_strided";
    *new_team = SHMEM_TEAM_INVALID;
    if (parent_team == SHMEM_TEAM_INVALID)
        return 1;
    const struct kumi_shmem_team *parent = team_of(call, parent_team);
    struct offer offer = {.arguments = {start, stride, size}};
    bool is_equal = agree(call, parent, &offer);
    long long last = start + (size - 1ll) * stride;
    bool is_inside = size > 0 && start >= 0 && start < parent->count && last >= 0 && last < parent->count &&
                     (stride != 0 || size == 1);
    if (!is_equal || !is_inside || offer.free_boxes == 0 || !is_known(config_mask, config))
        return 1;
    *new_team = create(parent, start, stride, size, &offer, offer.free_boxes, config, config_mask);
    /* A member could write to a box that another one has not renewed. */
    team_sync(call, parent);
    return 0;
}

PUBLIC int shmem_team_split_2d(shmem_team_t parent_team, int xrange, const shmem_team_config_t *xaxis_config,
                               long xaxis_mask, shmem_team_t *xaxis_team,
                               const shmem_team_config_t *yaxis_config, long yaxis_mask,
                               shmem_team_t *yaxis_team)
{
    static const char *call = "shmem_team_split_2d";
    *xaxis_team = *yaxis_team = SHMEM_TEAM_INVALID;
    if (parent_team == SHMEM_TEAM_INVALID)
        return 1;
    const struct kumi_shmem_team *parent = team_of(call, parent_team);
    struct offer offer = {.arguments = {xrange}};
    bool is_equal = agree(call, parent, &offer);
    uint64_t second = offer.free_boxes & (offer.free_boxes - 1);
    if (!is_equal || xrange < 1 || second == 0 || !is_known(xaxis_mask, xaxis_config) ||
        !is_known(yaxis_mask, yaxis_config))
        return 1;
    int width = xrange < parent->count ? xrange : parent->count;
    int column = parent->me % width, row = parent->me - column;
    int row_count = parent->count - row < width ? parent->count - row : width;
    int column_count = (parent->count - column + width - 1) / width;
    *xaxis_team = create(parent, row, 1, row_count, &offer, offer.free_boxes, xaxis_config, xaxis_mask);
    *yaxis_team = create(parent, column, width, column_count, &offer, second, yaxis_config, yaxis_mask);
    team_sync(call, parent);
    return 0;
}

PUBLIC void shmem_team_destroy(shmem_team_t team)
{
    static const char *call = "shmem_team_destroy";
    if (team == SHMEM_TEAM_INVALID)
        return;
    struct kumi_shmem_team *gone = team_of(call, team);
    if (gone == &world || gone == &shared)
        fail(call, "a predefined team cannot be destroyed");
    team_sync(call, gone);
    /* Numbers of letters read that are in flight would hide those of a later team. */
    char error[256];
    for (int member = 0; member < gone->count; member++) {
        int pe = team_pe(gone, member);
        if (pe != job.me)
            check(call, pe, kumi_wind_flush(job.node, job.peers[pe], -1, error, sizeof error), error);
    }
    free_boxes |= 1ull << gone->index;
    free(gone);
}

PUBLIC int shmem_team_my_pe(shmem_team_t team)
{
    return team == SHMEM_TEAM_INVALID ? -1 : team_of("shmem_team_my_pe", team)->me;
}

PUBLIC int shmem_team_n_pes(shmem_team_t team)
{
    return team == SHMEM_TEAM_INVALID ? -1 : team_of("shmem_team_n_pes", team)->count;
}

PUBLIC int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t *config)
{
    if (team == SHMEM_TEAM_INVALID || !is_known(config_mask, config))
        return 1;
    if (config_mask & SHMEM_TEAM_NUM_CONTEXTS)
        config->num_contexts = team_of("shmem_team_get_config", team)->num_contexts;
    return 0;
}

PUBLIC int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team)
{
    static const char *call = "shmem_team_translate_pe";
    if (src_team == SHMEM_TEAM_INVALID || dest_team == SHMEM_TEAM_INVALID)
        return -1;
    const struct kumi_shmem_team *from = team_of(call, src_team);
    if (src_pe < 0 || src_pe >= from->count)
        return -1;
    return team_member(team_of(call, dest_team), team_pe(from, src_pe));
}
