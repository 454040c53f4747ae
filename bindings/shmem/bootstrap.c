/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How the PEs of a job find each other: each has a card, and the launcher, or PE 0, shows all cards
 * to all.
 *
 *    kumi oshrun, torchrun       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *    mpirun of MPICH             the process manager's interface PMI-1, over a descriptor
 *    mpirun of Open MPI, srun    libpmix, which is loaded if the launcher has set its variables
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"

static const char call[] = "shmem_init";

/* A card as text without spaces, in parts: process managers limit the length of a value. */
enum { CARD_PARTS = 2, PART_BYTES = KUMI_CARD_BYTES / CARD_PARTS, PART_TEXT = 2 * PART_BYTES + 1 };

static void to_text(const char *part, char text[PART_TEXT])
{
    for (int at = 0; at < PART_BYTES; at++)
        sprintf(text + 2 * at, "%02x", (unsigned char)part[at]);
}

static void from_text(const char *text, char *part)
{
    for (int at = 0; at < PART_BYTES; at++) {
        unsigned byte;
        if (sscanf(text + 2 * at, "%2x", &byte) != 1)
            fail(call, "the launcher returned a card that is cut off");
        part[at] = (char)byte;
    }
}

static struct kumi_group_config config(void)
{
    const char *interface = getenv("KUMI_SHMEM_INTERFACE");
    return (struct kumi_group_config){.size = sizeof(struct kumi_group_config),
                                      .interface = interface != NULL && *interface ? interface : NULL};
}

static int is_trusted(void)
{
    const char *name = "KUMI_SHMEM_TRUSTED", *text = getenv(name);
    if (text == NULL || strcmp(text, "0") == 0 || *text == '\0')
        return 0;
    if (strcmp(text, "1") != 0)
        fail(call, "invalid %s `%s`: expected 0 or 1", name, text);
    return 1;
}

/* A store of the launcher in which each process writes its values, and reads those of others. */
struct store {
    int rank, count;
    void (*put)(const char *key, const char *value);
    void (*fence)(void);
    /* Writes the value, of at most PART_TEXT bytes. */
    void (*get)(int rank, const char *key, char *value);
};

static struct kumi_ranks *join(const struct store *store)
{
    char error[512], key[64], text[PART_TEXT];
    struct kumi_group_config settings = config();
    char *cards = calloc((size_t)store->count, KUMI_CARD_BYTES);
    char *own = cards + (size_t)store->rank * KUMI_CARD_BYTES;
    struct kumi_listening *listening = kumi_ranks_listen(&settings, own, error, sizeof error);
    if (listening == NULL)
        fail(call, "%s", error);
    for (int part = 0; part < CARD_PARTS; part++) {
        snprintf(key, sizeof key, "kumi-card-%d-%d", store->rank, part);
        to_text(own + part * PART_BYTES, text);
        store->put(key, text);
    }
    store->fence();
    for (int rank = 0; rank < store->count; rank++)
        for (int part = 0; part < CARD_PARTS && rank != store->rank; part++) {
            snprintf(key, sizeof key, "kumi-card-%d-%d", rank, part);
            store->get(rank, key, text);
            from_text(text, cards + (size_t)rank * KUMI_CARD_BYTES + part * PART_BYTES);
        }
    struct kumi_ranks *ranks =
        kumi_ranks_join(listening, store->rank, store->count, cards, is_trusted(), error, sizeof error);
    free(cards);
    if (ranks == NULL)
        fail(call, "%s", error);
    return ranks;
}

/* --- PMI-1: lines of text --- */

static FILE *manager;
static char space_name[256];

/* Sends a command, and returns the answer, which must be `expected`. */
static const char *ask(const char *command, const char *expected)
{
    static char answer[4096];
    if (fputs(command, manager) < 0 || fflush(manager) != 0 || fgets(answer, sizeof answer, manager) == NULL)
        fail(call, "the process manager does not answer `%.40s`", command);
    answer[strcspn(answer, "\n")] = '\0';
    const char *status = strstr(answer, " rc=");
    if (strncmp(answer, "cmd=", 4) != 0 || strncmp(answer + 4, expected, strlen(expected)) != 0 ||
        (status != NULL && atoi(status + 4) != 0))
        fail(call,
             "the process manager answered `%.80s` to `%.40s`: expected PMI-1; with srun use --mpi=pmix",
             answer, command);
    return answer;
}

static const char *value_in(const char *answer, const char *name)
{
    const char *at = strstr(answer, name);
    if (at == NULL)
        fail(call, "the process manager's answer `%.80s` has no %s", answer, name);
    return at + strlen(name);
}

static void pmi_put(const char *key, const char *value)
{
    char command[1024];
    snprintf(command, sizeof command, "cmd=put kvsname=%s key=%s value=%s\n", space_name, key, value);
    ask(command, "put_result");
}

static void pmi_fence(void)
{
    ask("cmd=barrier_in\n", "barrier_out");
}

static void pmi_get(int rank, const char *key, char *value)
{
    (void)rank;
    char command[512];
    snprintf(command, sizeof command, "cmd=get kvsname=%s key=%s\n", space_name, key);
    const char *found = value_in(ask(command, "get_result"), "value=");
    snprintf(value, PART_TEXT, "%.*s", (int)strcspn(found, " "), found);
}

static struct kumi_ranks *join_by_pmi(int descriptor)
{
    manager = fdopen(dup(descriptor), "r+");
    if (manager == NULL)
        fail(call, "cannot use PMI_FD %d: %m", descriptor);
    setvbuf(manager, NULL, _IOLBF, 8192);
    ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init");
    const char *name = value_in(ask("cmd=get_my_kvsname\n", "my_kvsname"), "kvsname=");
    snprintf(space_name, sizeof space_name, "%.*s", (int)strcspn(name, " "), name);
    struct store store = {atoi(getenv("PMI_RANK")), atoi(getenv("PMI_SIZE")), pmi_put, pmi_fence, pmi_get};
    struct kumi_ranks *ranks = store.count > 1 ? join(&store) : NULL;
    ask("cmd=finalize\n", "finalize_ack");
    fclose(manager);
    return ranks;
}

/* --- PMIx: the parts of its interface (pmix_common.h, versions 2 to 5) that are needed --- */

enum { PMIX_SUCCESS = 0, PMIX_SCOPE_GLOBAL = 3, PMIX_TYPE_STRING = 3, PMIX_TYPE_UINT32 = 14 };

struct pmix_proc {
    char namespace[256];
    uint32_t rank;
};
struct pmix_value {
    uint16_t type;
    union {
        char *string;
        uint32_t number;
        char room[24];
    } data;
};
_Static_assert(sizeof(struct pmix_value) == 32, "as in pmix_common.h");

static struct {
    int (*init)(struct pmix_proc *, void *, size_t);
    int (*finalize)(const void *, size_t);
    int (*put)(unsigned char, const char *, struct pmix_value *);
    int (*commit)(void);
    int (*fence)(const struct pmix_proc *, size_t, const void *, size_t);
    int (*get)(const struct pmix_proc *, const char *, const void *, size_t, struct pmix_value **);
    struct pmix_proc own;
} pmix;

static void check_pmix(int status, const char *what)
{
    if (status != PMIX_SUCCESS)
        fail(call, "libpmix: %s failed with status %d", what, status);
}

static void pmix_put(const char *key, const char *value)
{
    char text[PART_TEXT];
    snprintf(text, sizeof text, "%s", value);
    struct pmix_value wrapped = {.type = PMIX_TYPE_STRING, .data.string = text};
    check_pmix(pmix.put(PMIX_SCOPE_GLOBAL, key, &wrapped), "PMIx_Put");
}

static void pmix_fence(void)
{
    check_pmix(pmix.commit(), "PMIx_Commit");
    check_pmix(pmix.fence(NULL, 0, NULL, 0), "PMIx_Fence");
}

static void pmix_get(int rank, const char *key, char *value)
{
    struct pmix_proc proc = pmix.own;
    proc.rank = (uint32_t)rank;
    struct pmix_value *found = NULL;
    check_pmix(pmix.get(&proc, key, NULL, 0, &found), "PMIx_Get");
    if (found == NULL || found->type != PMIX_TYPE_STRING)
        fail(call, "libpmix has no card of PE %d", rank);
    snprintf(value, PART_TEXT, "%s", found->data.string);
    free(found->data.string);
    free(found);
}

static struct kumi_ranks *join_by_pmix(void *library)
{
    pmix.init = dlsym(library, "PMIx_Init");
    pmix.finalize = dlsym(library, "PMIx_Finalize");
    pmix.put = dlsym(library, "PMIx_Put");
    pmix.commit = dlsym(library, "PMIx_Commit");
    pmix.fence = dlsym(library, "PMIx_Fence");
    pmix.get = dlsym(library, "PMIx_Get");
    if (!pmix.init || !pmix.finalize || !pmix.put || !pmix.commit || !pmix.fence || !pmix.get)
        fail(call, "libpmix lacks a function: %s", dlerror());
    check_pmix(pmix.init(&pmix.own, NULL, 0), "PMIx_Init");
    struct pmix_proc all = pmix.own;
    all.rank = UINT32_MAX - 1;
    struct pmix_value *count = NULL;
    check_pmix(pmix.get(&all, "pmix.job.size", NULL, 0, &count), "PMIx_Get of the number of processes");
    struct store store = {(int)pmix.own.rank, (int)count->data.number, pmix_put, pmix_fence, pmix_get};
    free(count);
    struct kumi_ranks *ranks = store.count > 1 ? join(&store) : NULL;
    return ranks;
}

void leave_launcher(void)
{
    if (pmix.finalize != NULL)
        (void)pmix.finalize(NULL, 0);
    pmix.finalize = NULL;
}

static bool is_set(const char *name)
{
    return getenv(name) != NULL;
}

/* Fails for a launcher that started several processes and gives them no way to meet. */
static void check_alone(void)
{
    static const char *counts[] = {"WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"};
    /* Slurm sets its variable also for a job that has no step. */
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++) {
        bool is_step = strcmp(counts[at], "SLURM_NTASKS") != 0 || is_set("SLURM_STEP_ID");
        if (is_set(counts[at]) && is_step && atoi(getenv(counts[at])) > 1)
            fail(call,
                 "%s is %s, and the launcher gives the processes no way to meet: use `kumi oshrun`, `srun "
                 "--mpi=pmix`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                 counts[at], getenv(counts[at]));
    }
}

struct kumi_ranks *find_ranks(void)
{
    char error[512];
    bool has_master = is_set("MASTER_ADDR") && is_set("MASTER_PORT");
    if (has_master && !is_set("RANK") && is_set("SLURM_PROCID") && is_set("SLURM_NTASKS")) {
        setenv("RANK", getenv("SLURM_PROCID"), 0);
        setenv("WORLD_SIZE", getenv("SLURM_NTASKS"), 0);
    }
    if (has_master && is_set("RANK")) {
        const char *size = getenv("WORLD_SIZE");
        if (size != NULL && strcmp(size, "1") == 0)
            return NULL;
        struct kumi_group_config settings = config();
        struct kumi_ranks *ranks = kumi_ranks_from_environment(&settings, is_trusted(), error, sizeof error);
        if (ranks == NULL)
            fail(call, "%s", error);
        return ranks;
    }
    if (is_set("PMI_FD") && is_set("PMI_RANK") && is_set("PMI_SIZE"))
        return join_by_pmi(atoi(getenv("PMI_FD")));
    if (is_set("PMIX_NAMESPACE")) {
        void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            fail(call,
                 "the launcher uses PMIx, and its library is missing: %s; install it, or use `kumi oshrun`",
                 dlerror());
        return join_by_pmix(library);
    }
    check_alone();
    return NULL;
}
