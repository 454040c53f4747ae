//! `kumi completions` and `kumi man`. Both are generated from the definitions of the commands, so
//! they always agree with the commands.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use kumi_command::output::Output;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `kumi completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell to complete for.
    shell: Shell,
}

/// Arguments of `kumi man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Folder to write one page per command into, such as /usr/local/share/man/man1. Without it,
    /// the first page is printed.
    folder: Option<PathBuf>,
    /// Prints the options of all commands as Markdown.
    #[arg(long, conflicts_with = "folder")]
    markdown: bool,
}

/// Prints completions for a shell.
pub fn completions<C: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "kumi", &mut text);
    Output.write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the first manual page, or writes all pages into a folder.
pub fn man<C: CommandFactory>(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let command = C::command();
    if args.markdown {
        let options = clap_markdown::MarkdownOptions::new()
            .title("Options".to_owned())
            .show_footer(false);
        let text = clap_markdown::help_markdown_command_custom(&command, &options);
        Output.write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    match &args.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command, folder))
                .with_context(|| format!("cannot write pages into {}", folder.display()))?;
        }
        None => clap_mangen::Man::new(command).render(&mut Output)?,
    }
    Ok(ExitCode::SUCCESS)
}
