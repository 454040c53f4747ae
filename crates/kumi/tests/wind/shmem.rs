//! OpenSHMEM between hosts of a lab, which `kumi oshrun` starts as it would by ssh.

use super::{KUMI, Lab, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library and a program of it in `folder`, and returns the program's path.
fn build(folder: &Path, name: &str, sources: &[PathBuf]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Path::new(KUMI).parent().unwrap();
    let places = [built.join("deps/libkumi.so"), built.join("libkumi.so")];
    let library = places.iter().filter(|place| place.exists());
    let library = library.max_by_key(|place| place.metadata().unwrap().modified().unwrap());
    let version = std::fs::read_to_string(root.join("bindings/c/kumi_version.h")).unwrap();
    let number = version.split("#define KUMI_ABI ").nth(1).unwrap();
    let number = number.lines().next().unwrap();
    let link = folder.join(format!("libkumi.so.{number}"));
    if !link.exists() {
        std::os::unix::fs::symlink(library.expect("libkumi.so is built"), link).unwrap();
        let script = root.join("bindings/shmem/build.sh");
        succeed(Command::new("bash").arg(script).arg(folder));
    }
    let program = folder.join(name);
    let mut command = Command::new(folder.join("kumi-oshcc"));
    command.args(["-std=gnu11", "-O2", "-o"]);
    command.arg(&program).args(sources);
    succeed(command.args(["-lm", "-lpthread"]));
    program
}

/// Runs a program on both hosts, started on the first one.
fn run(lab: &Lab, options: &[&str], program: &Path) -> String {
    let mut command = Command::new(KUMI);
    command.args(["lab", "exec", "--lab", lab.cluster.name(), "h1", "--", KUMI]);
    command
        .args(["oshrun", "--host", "h1:2,h2:2"])
        .args(options);
    succeed(command.arg(program))
}

#[test]
#[ignore = "needs root, netns, bpf"]
fn shmem__on_two_hosts__is_executed_by_their_kernels_or_by_threads() {
    let mut lab = Lab::up("shmem", &kumi_testlab::cables(1, "1Gbit"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let heat = build(&lab.folder, "heat", &[root.join("examples/shmem/heat.c")]);
    let result = run(&lab, &[], &heat);
    assert!(result.contains("the sequential result"), "{result}");
    lab.begin();
    let trusted = ["--trusted", "-x", "SHMEM_DEBUG=1"];
    let result = run(&lab, &trusted, &heat);
    assert!(result.contains("the sequential result"), "{result}");
    let parts = std::fs::read_dir(root.join("bindings/tests")).unwrap();
    let parts = parts.map(|part| part.unwrap().path()).filter(|part| {
        let name = part.file_name().unwrap().to_string_lossy().into_owned();
        let is_part = name.starts_with("shmem") && name.ends_with(".c");
        is_part && name != "shmem_errors.c"
    });
    let conformance = build(&lab.folder, "conformance", &parts.collect::<Vec<_>>());
    let claims = run(&lab, &["--trusted"], &conformance);
    assert!(claims.lines().count() > 20, "{claims}");
    assert!(
        claims.lines().all(|line| line.starts_with("ok ")),
        "{claims}"
    );
    lab.end();
}
