//! Compiles the program of `bpf/wind`. If it cannot, `kumi wind up` reports that this build has
//! none.

fn main() {
    kumi_embed::compile_bpf("wind", "`kumi wind up` will have no program");
}
