/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two endpoints of one process, each with its own domain, for tests of the libfabric provider. */
#ifndef LIBFABRIC_SIDES_H
#define LIBFABRIC_SIDES_H

#include <stdbool.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { LARGE_BYTES = 16 << 20, LIMIT_MS = 10000 };

struct side {
    /* The side asks for automatic progress. */
    bool is_automatic;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vector;
    struct fid_cq *queue;
    struct fid_cntr *sends;
    struct fid_ep *endpoint;
    /* The other side, and itself. */
    fi_addr_t other;
    fi_addr_t self;
};

extern struct side a, b;
/* Buffers of LARGE_BYTES bytes. */
extern uint8_t *large, *copy;

int64_t now_ms(void);

struct fi_info *hints_new(void);

/* Returns the outcome of fi_getinfo for hints, which it frees, and the first entry. */
int query(struct fi_info *hints, const char *node, const char *service, uint64_t flags, struct fi_info **out);

/* Ends the program if a call failed. */
void must(const char *call, int outcome);

void side_open(struct side *side);
void side_close(struct side *side);

/* Inserts the address of the other side's endpoint into the vector of a side. */
fi_addr_t insert(struct side *side, struct side *other);

/*
 * Waits for a completion of one side while both make progress. Returns 0 and the completion, an
 * error of an operation as a positive number, or -1 after the limit.
 */
int await(struct side *side, struct fi_cq_tagged_entry *entry, fi_addr_t *source, size_t *excess);

/* Returns whether a side has no completion for 30 ms, in which both make progress. */
bool is_silent(struct side *side);

void fill(uint8_t *bytes, size_t count, int seed);

/* Claims of libfabric_memory.c. */
void memory_claims(void);
void atomic_claims(void);

#endif
