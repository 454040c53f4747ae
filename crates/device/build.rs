//! Compiles the programs of `bpf/multilink`. If it cannot, `kumi link up --datapath kernel` reports
//! that this build has none.

fn main() {
    kumi_embed::compile_bpf("multilink", "`kumi link up` will have no kernel data path");
}
