//! The project's own tooling: `cargo xtask tidy`.

fn main() {
    eprintln!("usage: cargo xtask tidy");
    std::process::exit(2);
}
