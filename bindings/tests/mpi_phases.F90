! SPDX-License-Identifier: MIT OR Apache-2.0
! Phases of an MPI program in Fortran, on two ranks, with `use mpi`, or with `use mpi_f08` under
! -DUSE_F08.
program mpi_phases
  use, intrinsic :: iso_c_binding
#ifdef USE_F08
  use mpi_f08
#else
  use mpi
#endif
  use kumi
  implicit none

  interface
    subroutine expect_rank(rank) bind(C)
      import :: c_int
      integer(c_int), value :: rank
    end subroutine expect_rank
    subroutine expect_phase(claim, phase) bind(C)
      import :: c_char
      character(kind=c_char), intent(in) :: claim(*), phase(*)
    end subroutine expect_phase
    subroutine expect_true(claim, holds) bind(C)
      import :: c_char, c_bool
      character(kind=c_char), intent(in) :: claim(*)
      logical(c_bool), value :: holds
    end subroutine expect_true
    function expect_result() bind(C) result(failed)
      import :: c_int
      integer(c_int) :: failed
    end function expect_result
  end interface

  integer, parameter :: long_integers = 16384
  integer :: rank, other, ierror, i
  integer :: outgoing(2), incoming(2)
  integer :: long_out(long_integers), long_in(long_integers)
  integer(kumi_phase_t) :: solver
  logical :: done
#ifdef USE_F08
  type(MPI_Request) :: request
  type(MPI_Status) :: status
#else
  integer :: request
  integer :: status(MPI_STATUS_SIZE)
#endif

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call expect_rank(int(rank, c_int))
  other = 1 - rank

  call alltoall()
  call expect_true("MPI_Alltoall delivers" // c_null_char, &
      logical(ierror == MPI_SUCCESS .and. all(incoming == [rank, 10 + rank]), c_bool))
  call expect_phase("after MPI_Alltoall the phase stays MPI_Alltoall" // c_null_char, &
      "MPI_Alltoall" // c_null_char)
  call MPI_Barrier(MPI_COMM_WORLD, ierror)
  call exchange(2)
  call expect_phase("through a barrier and a small send it stays" // c_null_char, &
      "MPI_Alltoall" // c_null_char)
  do i = 1, 6
    call exchange(2)
  end do
  call expect_phase("7 calls are counted as 7" // c_null_char, "MPI_Alltoall" // c_null_char)
  call exchange(2)
  call expect_phase("with the 8th it is point-to-point" // c_null_char, "point-to-point" // c_null_char)

  call alltoall()
  call exchange(long_integers - 1)
  call expect_phase("a send of 64 KiB less an integer does not switch" // c_null_char, &
      "MPI_Alltoall" // c_null_char)
  call exchange(long_integers)
  call expect_true("a send of 64 KiB delivers" // c_null_char, logical(all(long_in == other), c_bool))
  call expect_phase("with it the phase is point-to-point" // c_null_char, "point-to-point" // c_null_char)

  solver = kumi_phase("solver  ")
  call kumi_phase_enter(solver)
  call expect_phase("a scope of kumi.f90 marks its phase" // c_null_char, "solver" // c_null_char)
  call MPI_Ialltoall(outgoing, 1, MPI_INTEGER, incoming, 1, MPI_INTEGER, MPI_COMM_WORLD, request, ierror)
  call expect_phase("MPI_Ialltoall marks from its call on" // c_null_char, "MPI_Ialltoall" // c_null_char)
  call MPI_Wait(request, status, ierror)
  call expect_phase("after MPI_Wait the phase is the scope's" // c_null_char, "solver" // c_null_char)
  call MPI_Ialltoall(outgoing, 1, MPI_INTEGER, incoming, 1, MPI_INTEGER, MPI_COMM_WORLD, request, ierror)
  done = .false.
  do while (.not. done)
    call MPI_Test(request, done, status, ierror)
  end do
  call expect_phase("so it is after MPI_Test" // c_null_char, "solver" // c_null_char)
  call kumi_phase_begin("inner")
  call alltoall()
  call expect_phase("and in a nested scope after MPI_Alltoall" // c_null_char, "inner" // c_null_char)
  call kumi_phase_end(ierror)
  call kumi_phase_leave()
  call expect_phase("after the scopes it is point-to-point" // c_null_char, "point-to-point" // c_null_char)
#ifdef USE_F08
  call MPI_Alltoall(outgoing, 1, MPI_INTEGER, incoming, 1, MPI_INTEGER, MPI_COMM_WORLD)
  call expect_phase("without the optional ierror it is marked too" // c_null_char, &
      "MPI_Alltoall" // c_null_char)
#endif

  call MPI_Finalize(ierror)
  if (expect_result() /= 0) error stop 1

contains

  subroutine alltoall()
    outgoing = [10 * rank, 10 * rank + 1]
    incoming = -1
    call MPI_Alltoall(outgoing, 1, MPI_INTEGER, incoming, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
  end subroutine alltoall

  subroutine exchange(integers)
    integer, intent(in) :: integers
    long_out = rank
    long_in = -1
    call MPI_Sendrecv(long_out, integers, MPI_INTEGER, other, 1, long_in, integers, MPI_INTEGER, &
        other, 1, MPI_COMM_WORLD, status, ierror)
  end subroutine exchange

end program mpi_phases
