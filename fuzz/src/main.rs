//! The seeded driver on stable Rust.
#![forbid(unsafe_code)]

use fastrand::Rng;
use kumi_fuzz::mutate::mutate;
use kumi_fuzz::targets::{TARGETS, Target, find};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: kumi-fuzz --list
       kumi-fuzz TARGET [--seconds N] [--seed N]
       kumi-fuzz TARGET --replay FILE";

/// The current input, for the report of a panic.
static RUNNING: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["--list"] => {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            Ok(())
        }
        [name, "--replay", file] => replay(name, Path::new(file)),
        [name, flags @ ..] => fuzz(name, flags),
        [] => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(mistake) => {
            eprintln!("kumi-fuzz: {mistake}");
            ExitCode::from(2)
        }
    }
}

fn replay(name: &str, file: &Path) -> Result<(), String> {
    let target = target(name)?;
    let input = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    target(&input);
    println!("{name}: {} bytes, no panic", input.len());
    Ok(())
}

fn fuzz(name: &str, flags: &[&str]) -> Result<(), String> {
    let target = target(name)?;
    let (mut seconds, mut seed) = (60, 1);
    for pair in flags.chunks(2) {
        let setting = match pair[0] {
            "--seconds" => &mut seconds,
            "--seed" => &mut seed,
            unknown => return Err(format!("unknown flag `{unknown}`\n{USAGE}")),
        };
        let text = pair
            .get(1)
            .ok_or_else(|| format!("{} needs a number", pair[0]))?;
        *setting = text
            .parse()
            .map_err(|_| format!("{}: `{text}` is not a number", pair[0]))?;
    }
    report_panics(name, seed);
    for input in inputs("regressions", name) {
        run(target, input);
    }
    let mut seeds = inputs("seeds", name);
    seeds.push(Vec::new());
    let mut rng = Rng::with_seed(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0_u64;
    while Instant::now() < end {
        let mut input = seeds[rng.usize(..seeds.len())].clone();
        let donor_index = rng.usize(..seeds.len());
        mutate(&mut input, &seeds[donor_index], &mut rng);
        run(target, input);
        runs += 1;
    }
    println!("fuzz {name}: {runs} inputs from seed {seed} in {seconds} s, no panic");
    Ok(())
}

fn target(name: &str) -> Result<Target, String> {
    let known = || TARGETS.map(|(name, _)| name).join(", ");
    find(name).ok_or_else(|| format!("no target `{name}`; there are: {}", known()))
}

fn run(target: Target, input: Vec<u8>) {
    *RUNNING.lock().expect("one thread") = input.clone();
    target(&input);
}

/// On a panic, saves the input and prints the command that replays it.
fn report_panics(name: &str, seed: u64) {
    let file = folder().join(format!("crash-{name}.bin"));
    let name = name.to_string();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("{panic}");
        let input = RUNNING
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let outcome = std::fs::write(&file, &*input);
        eprintln!("fuzz {name}, seed {seed}: input kept: {outcome:?}; replay it with");
        eprintln!(
            "  cargo run -p kumi-fuzz -- {name} --replay {}",
            file.display()
        );
    }));
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of `fuzz/KIND/NAME/` in a fixed order; none if the folder does not exist.
fn inputs(kind: &str, name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder().join(kind).join(name)) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| std::fs::read(path).ok())
        .collect()
}
