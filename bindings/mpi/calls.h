/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Lists of the wrapped MPI functions, one per line: X(C name, Fortran name, number of the C
 * function's arguments, meaning of the call for the phase). All other code is generated from these
 * two lists. The Fortran function has one more argument at the end, the error code.
 * bindings/tests/argument_counts.py compares the counts with an mpi.h.
 */
#ifndef KUMI_MPI_CALLS_H
#define KUMI_MPI_CALLS_H

/*
 * Functions with a count of elements. MPI 4 has a second version of each, MPI_..._c, with a count
 * of 64 bits.
 */
#define KUMI_MPI_COUNTED_CALLS(X)                                                                    \
    /* Marked collectives: those in which many pairs share bandwidth. MPI_Barrier moves no data,   \
     * and MPI_Bcast runs down a tree from one sender to one receiver. Both therefore count as     \
     * point-to-point (GridMPI: Matsuda et al., section 3.1) and are not marked. */ \
    X(Alltoall, alltoall, 7, COLLECTIVE)                                                             \
    X(Alltoallv, alltoallv, 9, COLLECTIVE)                                                           \
    X(Alltoallw, alltoallw, 9, COLLECTIVE)                                                           \
    X(Allgather, allgather, 7, COLLECTIVE)                                                           \
    X(Allgatherv, allgatherv, 8, COLLECTIVE)                                                         \
    X(Gather, gather, 8, COLLECTIVE)                                                                 \
    X(Gatherv, gatherv, 9, COLLECTIVE)                                                               \
    X(Scatter, scatter, 8, COLLECTIVE)                                                               \
    X(Scatterv, scatterv, 9, COLLECTIVE)                                                             \
    X(Reduce, reduce, 7, COLLECTIVE)                                                                 \
    X(Allreduce, allreduce, 6, COLLECTIVE)                                                           \
    X(Reduce_scatter, reduce_scatter, 6, COLLECTIVE)                                                 \
    X(Reduce_scatter_block, reduce_scatter_block, 6, COLLECTIVE)                                     \
    X(Scan, scan, 6, COLLECTIVE)                                                                     \
    X(Exscan, exscan, 6, COLLECTIVE)                                                                 \
    X(Neighbor_allgather, neighbor_allgather, 7, COLLECTIVE)                                         \
    X(Neighbor_allgatherv, neighbor_allgatherv, 8, COLLECTIVE)                                       \
    X(Neighbor_alltoall, neighbor_alltoall, 7, COLLECTIVE)                                           \
    X(Neighbor_alltoallv, neighbor_alltoallv, 9, COLLECTIVE)                                         \
    X(Neighbor_alltoallw, neighbor_alltoallw, 9, COLLECTIVE)                                         \
    X(Bcast, bcast, 5, UNMARKED_COLLECTIVE)                                                          \
    /* Nonblocking variants of the marked collectives. */                                            \
    X(Ialltoall, ialltoall, 8, NONBLOCKING)                                                          \
    X(Ialltoallv, ialltoallv, 10, NONBLOCKING)                                                       \
    X(Ialltoallw, ialltoallw, 10, NONBLOCKING)                                                       \
    X(Iallgather, iallgather, 8, NONBLOCKING)                                                        \
    X(Iallgatherv, iallgatherv, 9, NONBLOCKING)                                                      \
    X(Igather, igather, 9, NONBLOCKING)                                                              \
    X(Igatherv, igatherv, 10, NONBLOCKING)                                                           \
    X(Iscatter, iscatter, 9, NONBLOCKING)                                                            \
    X(Iscatterv, iscatterv, 10, NONBLOCKING)                                                         \
    X(Ireduce, ireduce, 8, NONBLOCKING)                                                              \
    X(Iallreduce, iallreduce, 7, NONBLOCKING)                                                        \
    X(Ireduce_scatter, ireduce_scatter, 7, NONBLOCKING)                                              \
    X(Ireduce_scatter_block, ireduce_scatter_block, 7, NONBLOCKING)                                  \
    X(Iscan, iscan, 7, NONBLOCKING)                                                                  \
    X(Iexscan, iexscan, 7, NONBLOCKING)                                                              \
    X(Ineighbor_allgather, ineighbor_allgather, 8, NONBLOCKING)                                      \
    X(Ineighbor_allgatherv, ineighbor_allgatherv, 9, NONBLOCKING)                                    \
    X(Ineighbor_alltoall, ineighbor_alltoall, 8, NONBLOCKING)                                        \
    X(Ineighbor_alltoallv, ineighbor_alltoallv, 10, NONBLOCKING)                                     \
    X(Ineighbor_alltoallw, ineighbor_alltoallw, 10, NONBLOCKING)                                     \
    /* Point-to-point. Arguments 1, 2 and 3 of every send are count, datatype, destination. */       \
    X(Send, send, 6, SEND)                                                                           \
    X(Ssend, ssend, 6, SEND)                                                                         \
    X(Bsend, bsend, 6, SEND)                                                                         \
    X(Rsend, rsend, 6, SEND)                                                                         \
    X(Isend, isend, 7, SEND)                                                                         \
    X(Issend, issend, 7, SEND)                                                                       \
    X(Ibsend, ibsend, 7, SEND)                                                                       \
    X(Irsend, irsend, 7, SEND)                                                                       \
    X(Sendrecv, sendrecv, 12, SEND)                                                                  \
    X(Sendrecv_replace, sendrecv_replace, 9, SEND)                                                   \
    X(Isendrecv, isendrecv, 12, SEND)                                                                \
    X(Isendrecv_replace, isendrecv_replace, 9, SEND)                                                 \
    X(Send_init, send_init, 7, SEND_INIT)                                                            \
    X(Ssend_init, ssend_init, 7, SEND_INIT)                                                          \
    X(Bsend_init, bsend_init, 7, SEND_INIT)                                                          \
    X(Rsend_init, rsend_init, 7, SEND_INIT)                                                          \
    X(Recv, recv, 7, RECEIVE)                                                                        \
    X(Irecv, irecv, 7, RECEIVE)                                                                      \
    X(Mrecv, mrecv, 5, RECEIVE)                                                                      \
    X(Imrecv, imrecv, 5, RECEIVE)

/* Functions on requests, and the collective that moves no data. */
#define KUMI_MPI_REQUEST_CALLS(X)                                                                    \
    /* Starts of persistent requests and completions have no count, so no _c variant.              \
     * TEST_AT_n: argument n shows whether any request has completed. */ \
    X(Barrier, barrier, 1, UNMARKED_COLLECTIVE)                                                      \
    X(Start, start, 1, START)                                                                        \
    X(Startall, startall, 2, STARTALL)                                                               \
    X(Wait, wait, 2, WAIT)                                                                           \
    X(Waitall, waitall, 3, WAIT)                                                                     \
    X(Waitany, waitany, 4, WAIT)                                                                     \
    X(Waitsome, waitsome, 5, WAIT)                                                                   \
    X(Test, test, 3, TEST_AT_1)                                                                      \
    X(Testall, testall, 4, TEST_AT_2)                                                                \
    X(Testany, testany, 5, TEST_AT_3)                                                                \
    X(Testsome, testsome, 5, TEST_AT_2)

#endif
