//! The project's own tooling: `cargo xtask tidy` and `cargo xtask test`.
//!
//! It has no dependencies. It builds in a second, and checks a tree whose dependencies do not
//! build.
#![forbid(unsafe_code)]

mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy                       checks the house style, as far as a program can
       cargo xtask test [--fuzz-seconds N]    runs every test; names those that cannot run here
                        [--only STAGE]        runs one stage: fmt clippy tidy docs unit deny
                                              fuzz network";

fn main() -> ExitCode {
    let root = workspace_root();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = args.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["tidy"] => tidy::run(&root),
        ["test", flags @ ..] => match test::Options::parse(flags) {
            Ok(options) => test::run(&root, &options),
            Err(mistake) => usage(&mistake),
        },
        _ => usage("expected one of: tidy, test"),
    }
}

fn usage(mistake: &str) -> ExitCode {
    eprintln!("xtask: {mistake}\n{USAGE}");
    ExitCode::from(2)
}

/// Returns the folder above this crate, because xtask is run from anywhere in the workspace.
fn workspace_root() -> PathBuf {
    let crate_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    crate_folder
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}
