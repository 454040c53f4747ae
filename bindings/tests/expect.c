/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kumi_phase_page.h"

static int own_rank;
static int failures;

static const volatile struct kumi_phase_page *page(void)
{
    static void *at;
    if (at == NULL) {
        const char *fd = getenv("KUMI_PHASE_FD");
        at = mmap(NULL, KUMI_PHASE_PAGE_BYTES, PROT_READ, MAP_SHARED, fd ? atoi(fd) : -1, 0);
        if (at == MAP_FAILED) {
            fprintf(stderr, "the test has no page\n");
            exit(2);
        }
    }
    return at;
}

static void print_claim(bool holds, const char *claim, const char *why)
{
    const char *label = getenv("KUMI_TEST_LABEL");
    if (!holds)
        failures++;
    if (holds && own_rank != 0)
        return;
    printf("%s %s: %s%s%s\n", holds ? "ok    " : "FAILED", label ? label : "?", claim,
           holds ? "" : "; it was ", holds ? "" : why);
    fflush(stdout);
}

void expect_rank(int rank)
{
    own_rank = rank;
}

void expect_true(const char *claim, bool holds)
{
    print_claim(holds, claim, "not so");
}

int phase_index(void)
{
    return (int)page()->phase;
}

void expect_index(const char *claim, int seen, const char *phase)
{
    char name[KUMI_PHASE_NAME_BYTES + 1] = "no phase";
    if (seen >= 0 && (uint32_t)seen < page()->named) {
        for (int i = 0; i < KUMI_PHASE_NAME_BYTES; i++)
            name[i] = page()->names[seen][i];
    }
    print_claim(strcmp(name, phase) == 0, claim, name);
}

void expect_phase(const char *claim, const char *phase)
{
    expect_index(claim, phase_index(), phase);
}

int expect_result(void)
{
    return failures != 0;
}
