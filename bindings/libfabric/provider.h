/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The libfabric provider `kumi`: reliable datagram endpoints over Wind (kumi_wind.h).
 *
 *    domain ─┬─ endpoint ─┬─ Wind node: a UDP socket and a thread
 *            │            ├─ peers, requests in progress
 *            │            └─ matching: posted receives, unexpected messages
 *            ├─ address vector
 *            ├─ completion queues and counters
 *            └─ memory regions, registered at each endpoint's node
 *
 * One lock for each domain protects all of its objects. Reads of a completion queue or a counter
 * make progress, and so does a thread of the domain if the program asks for automatic progress.
 * Wind's own thread executes operations on memory regions, acknowledges and retransmits.
 */
#ifndef PROVIDER_H
#define PROVIDER_H

#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <kumi_wind.h>

#include "list.h"

/* Most buffers of one operation. */
enum { BUFFERS_MAX = 4 };

/*
 * Longest message that is sent without an offer: half of what a peer may send without a grant.
 * docs/perf-log.md, 2026-11-25, has the measurement.
 */
enum { EAGER_BYTES_MAX = 32 << 10 };

/* Longest message of fi_inject. Each eager message could be injected. */
enum { INJECT_BYTES_MAX = 4096 };

/* Operations of an endpoint that have not completed. */
enum { REQUESTS_MAX = 4096 };

/* Operands of one atomic operation, in bytes. They fit into a datagram with their head. */
enum { ATOMIC_BYTES_MAX = 1024 };

/* Longest message: that of a 63-bit length. */
#define MESSAGE_BYTES_MAX ((size_t)SSIZE_MAX)

enum { ERROR_TEXT_BYTES = 256 };

#define WARN(subsystem, ...) FI_WARN(&provider, subsystem, __VA_ARGS__)

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

extern struct fi_provider provider;

struct fabric {
    struct fid_fabric fid;
};

struct domain {
    struct fid_domain fid;
    pthread_mutex_t lock;
    struct list endpoints;
    struct list regions;
    /* Objects that were opened from the domain, and not closed. */
    int references;
    /* Completions and errors that were reported. */
    uint64_t reports;
    uint32_t next_region;
    uint8_t secret[KUMI_WIND_SECRET_BYTES];
    /* The thread of automatic progress. */
    pthread_t thread;
    bool has_thread;
    bool is_closing;
};

struct vector {
    struct fid_av fid;
    struct domain *domain;
    union address *addresses;
    size_t count;
    size_t room;
    /* Rises when addresses are inserted or removed. */
    unsigned version;
    int references;
};

/* A completion, or an error. */
struct completion {
    void *context;
    uint64_t flags;
    size_t bytes;
    void *buffer;
    uint64_t data;
    uint64_t tag;
    fi_addr_t source;
    /* 0 for a completion. */
    int error;
    int outcome;
    size_t excess_bytes;
};

struct queue {
    struct fid_cq fid;
    struct domain *domain;
    enum fi_cq_format format;
    /* A ring: `count` completions from `first` on. */
    struct completion *ring;
    size_t first;
    size_t count;
    size_t room;
    /* Threads that wait in fi_cq_sread. */
    int waiters;
    bool is_signalled;
    int references;
};

struct counter {
    struct fid_cntr fid;
    struct domain *domain;
    uint64_t value;
    uint64_t errors;
    int waiters;
    int references;
};

/* Events of an endpoint for which a counter can be bound. */
enum event { EVENT_SEND, EVENT_RECV, EVENT_READ, EVENT_WRITE, EVENT_REMOTE_WRITE, EVENT_COUNT };

struct peer {
    struct list link;
    /* Number at the Wind node. */
    uint32_t number;
    union address address;
    /* Address in the vector, or FI_ADDR_NOTAVAIL. */
    fi_addr_t name;
    unsigned looked_up;
    bool is_self;
    bool is_lost;
};

/* A number on the wire consists of a slot's index and its generation. */
struct slot {
    struct request *request;
    uint32_t generation;
    uint32_t next_free;
};

struct endpoint {
    struct fid_ep fid;
    struct list link;
    struct domain *domain;
    struct vector *vector;
    struct queue *send_queue;
    struct queue *receive_queue;
    struct counter *counters[EVENT_COUNT];
    /* Operations complete in the queue only if they have FI_COMPLETION. */
    bool is_send_selective;
    bool is_receive_selective;
    uint64_t send_flags;
    uint64_t receive_flags;
    uint64_t caps;
    union address address;
    struct kumi_wind_node *node;
    bool is_enabled;

    struct list peers;
    /* By the number at the node, and by the index in the vector. */
    struct peer **by_number;
    size_t by_number_room;
    struct peer **by_name;
    size_t by_name_room;

    /* Requests by their slot. */
    struct slot *slots;
    uint32_t slot_room;
    uint32_t first_free;
    /* Requests of this side's operations, at most REQUESTS_MAX. */
    int started;
    /* Requests that progress advances. */
    struct list requests;
    int64_t checked_ms;
    /* Threads in domain_wait. */
    int waiters;

    /* Receives and messages, untagged and tagged. */
    struct list posted[2];
    struct list unexpected[2];
    struct list claimed;
    /* Messages of the provider for which there was no room. */
    struct list deferred;
};

struct region {
    struct fid_mr fid;
    struct list link;
    struct domain *domain;
    uint8_t *memory;
    size_t bytes;
    uint64_t access;
    uint32_t number;
    /* Registrations at the endpoints' nodes. */
    struct list places;
};

enum kind {
    /* A synchronous message, until it is placed. */
    REQUEST_PLACED,
    /* A message, until the receiver confirms it. */
    REQUEST_CONFIRMED,
    /* A long message: offered, then sent. */
    REQUEST_OFFER,
    REQUEST_SEND,
    /* A long message that is received. */
    REQUEST_RECEIVE,
    /* Operations on memory. */
    REQUEST_TRANSFER,
    /* An atomic operation that the peer's provider executes. */
    REQUEST_ATOMIC,
};

/* An operation in progress. */
struct request {
    struct list link;
    enum kind kind;
    struct endpoint *endpoint;
    struct peer *peer;
    /* Number for the peer. */
    uint64_t number;
    enum event event;
    bool has_completion;
    struct completion completion;
    uint64_t operation_flags;

    struct iovec buffers[BUFFERS_MAX];
    size_t buffer_count;
    /* Length of the message, bytes that the receiver takes, and bytes sent or received. */
    size_t bytes;
    size_t wanted_bytes;
    size_t done_bytes;

    /* Of a message: number of the synchronous one, and the receiver's number and place. */
    uint64_t message;
    uint64_t remote;
    struct kumi_wind_place place;
    struct kumi_wind_region *region;
    /* Buffer of its own, for a receive into several buffers or an injected operation. */
    void *bounce;
    bool is_confirmed;

    /* Of an operation on memory. */
    struct kumi_wind_transfer *transfers[BUFFERS_MAX];
    size_t transfer_count;
    /* enum kumi_wind_outcome of the first transfer that failed. */
    int failure;
    bool has_remote_data;
    uint64_t remote_data;
    uint64_t word;
    size_t word_bytes;
};

static inline struct domain *domain_of(struct fid_domain *fid)
{
    return LIST_MEMBER(fid, struct domain, fid);
}

static inline struct endpoint *endpoint_of(struct fid_ep *fid)
{
    return LIST_MEMBER(fid, struct endpoint, fid);
}

static inline void lock(struct domain *domain)
{
    pthread_mutex_lock(&domain->lock);
}

static inline void unlock(struct domain *domain)
{
    pthread_mutex_unlock(&domain->lock);
}

/* address.c and info.c */
int provider_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
                     const struct fi_info *hints, struct fi_info **out);
socklen_t address_bytes(const union address *address);
bool address_equals(const union address *one, const union address *other);
void address_print(const union address *address, char *text, size_t bytes);
bool address_parse(const char *text, union address *address);

/* fabric.c */
int fabric_open(struct fi_fabric_attr *attributes, struct fid_fabric **out, void *context);
int secret_read(uint8_t secret[KUMI_WIND_SECRET_BYTES]);
/* Operations that a class does not have. */
int no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int no_control(struct fid *fid, int command, void *argument);
int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

/* domain.c */
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out, void *context);

/* address_vector.c */
int vector_open(struct fid_domain *domain, struct fi_av_attr *attributes, struct fid_av **out, void *context);
fi_addr_t vector_find(const struct vector *vector, const union address *address);

/* queue.c */
int queue_open(struct fid_domain *domain, struct fi_cq_attr *attributes, struct fid_cq **out, void *context);
void queue_push(struct queue *queue, const struct completion *completion);
/* Wakes the threads that wait for a completion or a counter of the domain. */
void domain_wake(struct domain *domain);
/* Waits until something happens at an endpoint of the domain. The lock is not held meanwhile. */
void domain_wait(struct domain *domain, uint64_t *seen, int64_t limit_ms);
int64_t now_ms(void);

/* counter.c */
int counter_open(struct fid_domain *domain, struct fi_cntr_attr *attributes, struct fid_cntr **out,
                 void *context);
void counter_add(struct counter *counter, bool is_error);

/* endpoint.c */
int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out, void *context);

/* peer.c */
int peer_find(struct endpoint *endpoint, fi_addr_t name, struct peer **out);
struct peer *peer_by_number(struct endpoint *endpoint, uint32_t number);
fi_addr_t peer_name(struct endpoint *endpoint, struct peer *peer);
void peer_lose(struct endpoint *endpoint, struct peer *peer);
void peers_check(struct endpoint *endpoint);
void peers_free(struct endpoint *endpoint);

/* request.c */
struct request *request_new(struct endpoint *endpoint, enum kind kind, struct peer *peer);
struct request *request_find(struct endpoint *endpoint, const struct peer *peer, uint64_t number);
/* Reports the end of a request, and frees it. `error` is 0 or an errno. */
void request_finish(struct request *request, int error, int outcome);
void request_free(struct request *request);
/* Reports an event to the queue, if there is to be a completion, and to the counter. */
void report(struct endpoint *endpoint, enum event event, bool has_completion,
            const struct completion *completion);
int error_of(int outcome);
size_t buffers_bytes(const struct iovec *buffers, size_t count);
size_t buffers_scatter(const struct iovec *buffers, size_t count, const void *from, size_t bytes);
size_t buffers_slice(const struct iovec *buffers, size_t count, size_t offset, size_t bytes,
                     struct iovec *out);

/* progress.c */
void progress(struct domain *domain);

/* region.c */
extern struct fi_ops_mr region_ops;
int region_attach(struct endpoint *endpoint);
void region_detach(struct endpoint *endpoint);
/* Returns the memory of a key; NULL with an errno in `error` if the peer may not access it. */
uint8_t *region_memory(struct domain *domain, uint64_t key, uint64_t offset, size_t bytes, uint64_t access,
                       int *error);
bool key_allows(uint64_t key, uint64_t access);
struct kumi_wind_place key_place(const struct domain *domain, uint64_t key, uint64_t offset);
/* Registers a buffer for one message. */
struct kumi_wind_region *buffer_register(struct endpoint *endpoint, void *memory, size_t bytes,
                                         struct kumi_wind_place *place);

/* message.c */
extern struct fi_ops_msg message_ops;
extern struct fi_ops_tagged tagged_ops;

/* rma.c */
extern struct fi_ops_rma rma_ops;
void transfer_advance(struct request *request);

/* atomic.c */
extern struct fi_ops_atomic atomic_ops;
int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op operation,
                 struct fi_atomic_attr *attributes, uint64_t flags);

#endif
