! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Communication phases from Fortran; kumi.h says what a phase and a scope are. Link with kumi_phase.c.
!
!     use kumi
!     call kumi_phase_begin("halo exchange")
!     ...
!     call kumi_phase_end()
!
! or, with the name looked up once:
!
!     integer(kumi_phase_t) :: halo
!     halo = kumi_phase("halo exchange")
!     call kumi_phase_enter(halo)
!     ...
!     call kumi_phase_leave()
!
! `ierror` is optional and takes what the C function returns: 0 or an errno value.
module kumi
  use, intrinsic :: iso_c_binding, only: c_char, c_int, c_int32_t, c_null_char
  implicit none
  private

  public :: kumi_phase_t, kumi_phase, kumi_phase_begin, kumi_phase_end, kumi_phase_enter, kumi_phase_leave

  integer, parameter :: kumi_phase_t = c_int32_t

  interface
    function c_phase(name) bind(C, name="kumi_phase") result(phase)
      import :: c_char, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t) :: phase
    end function c_phase

    function c_enter(phase) bind(C, name="kumi_phase_enter") result(error)
      import :: c_int, c_int32_t
      integer(c_int32_t), value :: phase
      integer(c_int) :: error
    end function c_enter

    function c_leave() bind(C, name="kumi_phase_leave") result(error)
      import :: c_int
      integer(c_int) :: error
    end function c_leave
  end interface

contains

  ! Blanks at the end of `name` are padding in Fortran, and no part of the name.
  function kumi_phase(name) result(phase)
    character(len=*), intent(in) :: name
    integer(kumi_phase_t) :: phase
    phase = c_phase(trim(name) // c_null_char)
  end function kumi_phase

  subroutine kumi_phase_enter(phase, ierror)
    integer(kumi_phase_t), intent(in) :: phase
    integer, intent(out), optional :: ierror
    integer(c_int) :: error
    error = c_enter(phase)
    if (present(ierror)) ierror = int(error)
  end subroutine kumi_phase_enter

  subroutine kumi_phase_leave(ierror)
    integer, intent(out), optional :: ierror
    integer(c_int) :: error
    error = c_leave()
    if (present(ierror)) ierror = int(error)
  end subroutine kumi_phase_leave

  subroutine kumi_phase_begin(name, ierror)
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: ierror
    call kumi_phase_enter(kumi_phase(name), ierror)
  end subroutine kumi_phase_begin

  subroutine kumi_phase_end(ierror)
    integer, intent(out), optional :: ierror
    call kumi_phase_leave(ierror)
  end subroutine kumi_phase_end

end module kumi
