! SPDX-License-Identifier: MIT OR Apache-2.0
! Results of planned collectives from Fortran, in place and not. With KUMI_VERBOSE, rank 0 prints
! the number of planned calls.
program mpi_collectives
#ifdef USE_F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer, parameter :: count = 20000
  integer :: rank, ranks, peer, i, error
  integer, allocatable, target :: from(:), to(:), counts(:), places(:)
  integer(MPI_ADDRESS_KIND) :: addresses(1)
  logical :: holds
#ifdef USE_F08
  type(MPI_Datatype) :: absolute
#else
  integer :: absolute
#endif

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  allocate (from(count*ranks), to(count*ranks), counts(ranks), places(ranks))
  from = [((rank*100 + peer, i=1, count), peer=0, ranks - 1)]

  to = -1
  call MPI_Alltoall(from, count, MPI_INTEGER, to, count, MPI_INTEGER, MPI_COMM_WORLD, error)
  holds = all(to == [((peer*100 + rank, i=1, count), peer=0, ranks - 1)])
  call claim('alltoall', holds)

  to = from
  call MPI_Alltoall(MPI_IN_PLACE, count, MPI_INTEGER, to, count, MPI_INTEGER, MPI_COMM_WORLD, error)
  holds = all(to == [((peer*100 + rank, i=1, count), peer=0, ranks - 1)])
  call claim('alltoall in place', holds)

  to = rank
  call MPI_Allreduce(MPI_IN_PLACE, to, count*ranks, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
  holds = all(to == ranks*(ranks - 1)/2)
  call claim('allreduce in place', holds)

  to = -1
  counts = count
  places = [(count*(ranks - 1 - peer), peer=0, ranks - 1)]
  ! The MPI library does the first call. Its lengths are recorded, so the second call is planned.
  call MPI_Gatherv(from, count, MPI_INTEGER, to, counts, places, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
  to = -1
  call MPI_Gatherv(from, count, MPI_INTEGER, to, counts, places, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
  holds = rank /= 0 .or. all(to == [((peer*100, i=1, count), peer=ranks - 1, 0, -1)])
  call claim('gatherv', holds)

  to = merge(7, -1, rank == ranks - 1)
  call MPI_Bcast(to, count*ranks, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, error)
  holds = all(to == 7)
  call claim('bcast', holds)

  to = merge(9, -1, rank == 0)
  call MPI_Get_address(to, addresses(1), error)
  call MPI_Type_create_hindexed(1, [count*ranks], addresses, MPI_INTEGER, absolute, error)
  call MPI_Type_commit(absolute, error)
  call MPI_Bcast(MPI_BOTTOM, 1, absolute, 0, MPI_COMM_WORLD, error)
  call MPI_Type_free(absolute, error)
  holds = all(to == 9)
  call claim('bcast from MPI_BOTTOM', holds)
  call MPI_Finalize(error)

contains

  subroutine claim(what, holds)
    character(*), intent(in) :: what
    logical, intent(in) :: holds
    logical :: all_hold
    call MPI_Reduce(holds, all_hold, 1, MPI_LOGICAL, MPI_LAND, 0, MPI_COMM_WORLD, error)
    if (rank == 0) then
      if (all_hold) then
        print '(3a)', 'ok     Fortran: ', what, ' brings what was sent'
      else
        print '(3a)', 'FAILED Fortran: ', what, ' brings something else'
      end if
    end if
  end subroutine
end program
