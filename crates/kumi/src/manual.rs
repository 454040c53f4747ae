//! `kumi completions` and `kumi man`: from the same definitions as the commands themselves, so that
//! they cannot say anything else.

use crate::output::Output;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `kumi completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Arguments of `kumi man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write a page a command into, such as /usr/local/share/man/man1; without it the
    /// first page is printed.
    folder: Option<PathBuf>,
}

/// Prints a shell's completions.
pub fn completions<C: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "kumi", &mut text);
    Output.write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages.
pub fn man<C: CommandFactory>(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let command = C::command();
    match &args.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            clap_mangen::generate_to(command, folder)?;
        }
        None => clap_mangen::Man::new(command).render(&mut Output)?,
    }
    Ok(ExitCode::SUCCESS)
}
