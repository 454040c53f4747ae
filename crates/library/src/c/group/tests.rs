use super::*;
use crate::c::message_of;

/// Returns the outcome of `kumi_group_join` for a rank that listens at the local addresses, with
/// only its own card.
fn join(rank: c_int, ranks: c_int) -> Result<*mut Group, String> {
    let mut group = ptr::null_mut();
    let message = message_of(|error, error_bytes| {
        let mut card = [0; CARD_BYTES];
        // SAFETY: no configuration is valid, and `card` has room for a card. More are not read,
        // because `ranks` is 1 or invalid.
        unsafe {
            let listening = kumi_group_listen(ptr::null(), card.as_mut_ptr(), error, error_bytes);
            assert!(!listening.is_null());
            group = kumi_group_join(listening, rank, ranks, card.as_ptr(), error, error_bytes);
        }
    });
    match group.is_null() {
        true => Err(message),
        false => Ok(group),
    }
}

#[test]
fn group_join__rank_or_number_out_of_range__is_refused_with_the_range() {
    for (rank, ranks, message) in [
        (0, 0, "invalid number of ranks 0: expected 1 to 4096"),
        (0, -1, "invalid number of ranks -1: expected 1 to 4096"),
        (0, 4097, "invalid number of ranks 4097: expected 1 to 4096"),
        (1, 1, "invalid rank 1: expected 0 to 0"),
        (-1, 1, "invalid rank -1: expected 0 to 0"),
    ] {
        assert_eq!(join(rank, ranks).unwrap_err(), message);
    }
}

#[test]
fn group_start__invalid_call__is_refused_with_what_is_accepted() {
    let group = join(0, 1).unwrap();
    let bytes = [8_u64];
    let call = CCall {
        size: size_of::<CCall>(),
        operation: RequestedOperation::AllReduce as i32,
        root: 0,
        element: Element::F64 as i32,
        reduction: Reduction::Sum as i32,
        bytes: bytes.as_ptr(),
        blocks: 1,
        from: ptr::null(),
        to: ptr::null(),
    };
    for (call, message) in [
        (
            CCall { size: 8, ..call },
            "kumi_group_call.size is 8: expected at least 56; \
             set it to sizeof(struct kumi_group_call) before any other member",
        ),
        (
            CCall {
                operation: 8,
                ..call
            },
            "operation 8 out of range (0–7)",
        ),
        (
            CCall {
                element: 14,
                ..call
            },
            "invalid element 14: expected 0 to 13, a value of enum kumi_element",
        ),
        (
            CCall {
                reduction: -1,
                ..call
            },
            "invalid reduction -1: expected 0 to 6, a value of enum kumi_reduction",
        ),
        (
            CCall { blocks: 2, ..call },
            "2 block sizes given: expected 1, one for each block",
        ),
        (CCall { root: 1, ..call }, "root 1 out of range (0–0)"),
        (CCall { root: -1, ..call }, "root -1 out of range (0–0)"),
    ] {
        let text = message_of(|error, error_bytes| {
            // SAFETY: the group is open, and the call is refused before its tables are read.
            let ticket = unsafe { kumi_group_start(group, &call, error, error_bytes) };
            assert!(ticket.is_null());
        });
        assert_eq!(text, message);
    }
    for peer in [0, 1, -1] {
        let text = message_of(|error, error_bytes| {
            // SAFETY: the group is open, and the message is refused before its memory is read.
            let ticket =
                unsafe { kumi_group_send(group, peer, 0, ptr::null(), 0, error, error_bytes) };
            assert!(ticket.is_null());
        });
        let expected = format!("invalid peer rank {peer}: expected 0 to 0, except this rank, 0");
        assert_eq!(text, expected);
    }
    // SAFETY: `kumi_group_join` made the group, which is not used again.
    unsafe { kumi_group_free(group) };
}
