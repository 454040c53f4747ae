//! The error for a mistake of the user.

/// Exit status for a mistake in a command line, a configuration or a topology.
pub const EXIT_BAD_INPUT: u8 = 2;

/// A mistake in the user's input. The command changed nothing and exits with [`EXIT_BAD_INPUT`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

impl BadInput {
    /// Returns one error with all `mistakes`, one per line, or `Ok` if there are no mistakes.
    pub fn of_all(mistakes: Vec<String>) -> Result<(), Self> {
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(Self(mistakes.join("\n")))
        }
    }
}
